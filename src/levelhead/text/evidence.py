"""What to show a person about token ids: both sides of the boundary, and counts of the tokens that matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from levelhead.text.codec import Codec


@dataclass(frozen=True, slots=True)
class Token:
    """A token id and what it reads.

    Attributes:
        id: The id.
        text: Its text; the tokenizer's own spelling where it is no text by itself (part of a character).
    """

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Boundary:
    """Both sides of the place where the prompt ends and the completion starts, and how the completion ends.

    Attributes:
        context_end: Last tokens of the context.
        completion_start: First tokens of the completion.
        completion_end: Last tokens of the completion.
    """

    context_end: tuple[Token, ...]
    completion_start: tuple[Token, ...]
    completion_end: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """How many tokens of a sequence are of which kind.

    Attributes:
        total: All.
        special: Special tokens of the tokenizer.
        stop: Tokens of the stop set.
        padding: The padding token, which may be a stop token as well.
    """

    total: int
    special: int
    stop: int
    padding: int


def boundary(codec: Codec, context_ids: Sequence[int], completion_ids: Sequence[int], width: int = 6) -> Boundary:
    """Return up to ``width`` tokens on each side of the boundary, and as many at the end."""
    return Boundary(
        tuple(read(codec, context_ids[-width:])),
        tuple(read(codec, completion_ids[:width])),
        tuple(read(codec, completion_ids[-width:])),
    )


def read(codec: Codec, ids: Sequence[int]) -> list[Token]:
    """Return each id with its text."""
    tokens = []
    for token in ids:
        text = str(codec.tokenizer.decode([token], clean_up_tokenization_spaces=False))
        whole = text and "\ufffd" not in text
        tokens.append(Token(int(token), text if whole else str(codec.tokenizer.convert_ids_to_tokens(int(token)))))
    return tokens


def count(codec: Codec, ids: Sequence[int]) -> TokenCounts:
    """Count the kinds of tokens in a sequence."""
    special = set(codec.tokenizer.all_special_ids)
    return TokenCounts(
        total=len(ids),
        special=sum(token in special for token in ids),
        stop=sum(token in codec.stop_ids for token in ids),
        padding=sum(token == codec.tokenizer.pad_token_id for token in ids),
    )
