"""What is said in English while a run goes on (events, settings in words), in Chinese for a reader who asks for it.

The files of a run are written in English, whatever the reader's language; a sentence is exchanged where it is shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from levelhead.diagnosis.findings import CATALOGUE, Language

FILE = Path(__file__).with_name("chinese.yaml")
"""Phrases and patterns."""
IDEOGRAPH = re.compile("[\u3400-\u9fff]")
"""Any Chinese character."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
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
    return Words(yaml.load(FILE.read_text(encoding="utf-8"), _LOADER), findings)  # noqa: S506 - a safe loader
