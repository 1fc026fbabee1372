"""Rendered text that knows which of its control tokens were written by a message, not by the template."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

_PRIVATE_USE = range(0xE000, 0xF900)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A text, and the places where it must be cut before it is encoded.

    Attributes:
        text: What the template wrote.
        cuts: Ascending character positions inside control tokens that a message's own text spelled out; no
            token may reach across one.
    """

    text: str
    cuts: tuple[int, ...] = ()

    def after(self, start: int) -> Rendered:
        """Return what follows character ``start``."""
        return Rendered(self.text[start:], tuple(cut - start for cut in self.cuts if cut > start))

    def followed_by(self, other: Rendered) -> Rendered:
        """Return this rendering and another, joined."""
        return Rendered(self.text + other.text, (*self.cuts, *(cut + len(self.text) for cut in other.cuts)))

    def pieces(self) -> Iterator[tuple[int, str]]:
        """Yield the text between cuts, each piece with the position where it starts."""
        edges = (0, *self.cuts, len(self.text))
        for start, end in itertools.pairwise(edges):
            yield start, self.text[start:end]


class ControlTokens:
    """The tokens that only a template may write: special tokens, as the tokenizer spells them.

    Args:
        tokens: Their spellings.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        longest_first = sorted({token for token in tokens if token}, key=lambda token: (-len(token), token))
        self.spellings = tuple(longest_first)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> ControlTokens:
        """Return a tokenizer's special tokens."""
        added = tokenizer.added_tokens_decoder.values()
        return cls([*tokenizer.all_special_tokens, *(token.content for token in added if token.special)])

    def but(self, tokens: Iterable[str]) -> ControlTokens:
        """Return these without the ones that count as text."""
        text = frozenset(tokens)
        return ControlTokens(token for token in self.spellings if token not in text) if text else self

    def found_in(self, value: Any) -> tuple[str, ...]:
        """Return the control tokens in every string of a message, roles aside, each once, in order."""
        tokens: dict[str, None] = {}
        for text in strings(value):
            tokens.update(dict.fromkeys(self._pattern.findall(text)))
        return tuple(tokens)

    def render(self, apply: Callable[[Any, Any], str], chat: list[Any], tools: list[Any] | None) -> Rendered:
        """Render a chat, cut inside each control token that its own strings spell out.

        Each is marked with a private character behind its first one, which no string of the chat uses; the
        marks say where to cut, and are gone from the text.
        """
        if not self.found_in([chat, tools]):
            return Rendered(apply(chat, tools))
        mark = unused_character(strings([chat, tools]))

        def spell_out(text: str) -> str:
            return self._pattern.sub(lambda match: match[0][0] + mark + match[0][1:], text)

        parts = apply(map_strings(chat, spell_out), map_strings(tools, spell_out)).split(mark)
        cuts: list[int] = []
        for part in parts[:-1]:
            cuts.append(len(part) + (cuts[-1] if cuts else 0))
        return Rendered("".join(parts), tuple(cuts))


def plain(value: Any) -> Any:
    """Return mappings as dicts and sequences as lists, all the way down."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    return value


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Return plain data with every string changed, keys and roles aside."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: item if key == "role" else map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [map_strings(item, change) for item in value]
    return value


def strings(value: Any) -> list[str]:
    """Return every string of plain data, keys and roles aside, in order."""
    texts: list[str] = []

    def note(text: str) -> str:
        texts.append(text)
        return text

    map_strings(value, note)
    return texts


def unused_character(texts: Iterable[str]) -> str:
    """Return a private-use character that occurs in none of the texts."""
    used = set().union(*texts)
    return next(chr(code) for code in _PRIVATE_USE if chr(code) not in used)
