"""What is said in English while a run goes on (events, settings in words), in Chinese for a reader who asks for it.

The files of a run are written in English, whatever the reader's language; a sentence is exchanged where it is shown.
New text has its Chinese beside it: a ``Message`` in code, or a finding's file; here stands what neither covers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

from levelhead.diagnosis.findings import CATALOGUE, Language, Text, shared_evidence
from levelhead.documents import load_own

FILE = Path(__file__).with_name("chinese.yaml")
"""Phrases and patterns."""
IDEOGRAPH = re.compile("[\u3400-\u9fff]")
"""Any Chinese character."""

_OWN_WORDS = 12
"""Characters besides its fields that an argument's wording has at least."""

_ENDS = {".": "。", "!": "\uff01", "?": "\uff1f"}


class Words:
    """Phrases and patterns of one file.

    Args:
        data: ``phrases`` (English to Chinese), and ``patterns`` (a regular expression to Chinese with a ``{}`` for
            each of its groups; what a group with a name holds is a name, or another program's words, and stays).
        more: Further phrases.
    """

    def __init__(self, data: Mapping[str, Any], more: Mapping[str, str] | None = None) -> None:
        self.phrases: Mapping[str, str] = {**(more or {}), **data["phrases"]}
        self.patterns: Mapping[re.Pattern[str], str] = {
            re.compile(pattern, re.DOTALL): words for pattern, words in data["patterns"].items()
        }

    def get(self, text: str, group: Callable[[str], str]) -> str | None:
        """Return a text in Chinese, ``None`` where it is not there; ``group`` looks up what a pattern's groups hold."""
        if text in self.phrases:
            return self.phrases[text]
        for pattern, words in self.patterns.items():
            if match := pattern.fullmatch(text):
                names = pattern.groupindex.values()
                parts = enumerate(match.groups(""), 1)
                return words.format(*(part if i in names else group(part) for i, part in parts))
        return None


def said(text: str, language: Language = "zh") -> str:
    """Return a sentence of an event, or a setting in words, in a language; as it is where it has no translation."""
    return text if language == "en" else exchanged(text, lambda part: own_words().get(part, said))


def exchanged(text: str, look: Callable[[str], str | None]) -> str:
    """Return a text in Chinese: whole, without its full stop, or part by part where all its parts are known.

    Args:
        text: In English.
        look: Returns a text in Chinese, ``None`` where there is none.
    """
    if not text:
        return text
    if (whole := look(text)) is not None:
        return whole
    if text[-1] in _ENDS and (rest := exchanged(text[:-1], look)) != text[:-1]:
        return rest if rest[-1] in "。\uff01\uff1f" else rest + _ENDS[text[-1]]
    if "; " in text:
        head, _, tail = text.partition("; ")
        parts = exchanged(head, look), exchanged(tail, look)
        if parts != (head, tail) and all(map(IDEOGRAPH.search, parts)):
            return "\uff1b".join(parts)
    return text


@cache
def own_words() -> Words:
    """Return what is exchanged: the file's phrases and patterns, and the findings' titles and meanings."""
    findings = {t.en: t.zh for entry in CATALOGUE.values() for t in (entry.title, entry.meaning)}
    findings |= {text.removesuffix("."): chinese.removesuffix("。") for text, chinese in findings.items()}
    arguments = [text for entry in CATALOGUE.values() for text in entry.evidence.values()]
    words: dict[str, Any] = load_own(FILE)
    patterns = dict(_pattern(text) for text in [*arguments, *shared_evidence().values()] if _tells(text))
    return Words({**words, "patterns": {**words["patterns"], **patterns}}, findings)


def _tells(argument: Text) -> bool:
    """Whether a wording has words enough of its own not to be taken for another sentence."""
    return sum(len(text) for text, _, _, _ in Formatter().parse(argument.en)) >= _OWN_WORDS


def _pattern(argument: Text) -> tuple[str, str]:
    """An argument's wording as a pattern of what it reads like filled in, and the Chinese with the same fields."""
    fields = list(dict.fromkeys(name for _, name, _, _ in Formatter().parse(argument.en) if name))
    pieces: list[str] = []
    for text, name, _, _ in Formatter().parse(argument.en):
        pieces.append(re.escape(text))
        if name:
            pieces.append(f"(?P={name})" if f"(?P<{name}>[^;]+?)" in pieces else f"(?P<{name}>[^;]+?)")
    chinese = "".join(
        text.replace("{", "{{").replace("}", "}}") + (f"{{{fields.index(name)}}}" if name in fields else "")
        for text, name, _, _ in Formatter().parse(argument.zh)
    )
    return "".join(pieces), chinese
