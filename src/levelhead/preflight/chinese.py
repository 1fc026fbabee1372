"""What a check says, in Chinese for a reader who asks for it; ``check.json`` and ``--json`` stay English."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from levelhead.diagnosis.chinese import Words, exchanged
from levelhead.diagnosis.chinese import own_words as words_of_runs
from levelhead.diagnosis.findings import Language

FILE = Path(__file__).with_name("chinese.yaml")
"""Phrases and patterns of messages and remedies."""
SENTENCE = 3
"""Words from which a text in the evidence is a sentence, and not a name or a value."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def told(text: str, language: Language = "zh") -> str:
    """Return what a check says in a language; as it is where it has no translation."""
    return text if language == "en" else exchanged(text, _look)


def told_in(evidence: Any, language: Language = "zh") -> Any:
    """Return a value of the evidence with its sentences, and keys that are words, in a language; the rest stays."""
    if language == "en":
        return evidence
    if isinstance(evidence, str):
        return told(evidence) if len(evidence.split()) >= SENTENCE else evidence
    if isinstance(evidence, Mapping):
        return {told(key) if " " in str(key) else key: told_in(value) for key, value in evidence.items()}
    if isinstance(evidence, list | tuple):
        return [told_in(value) for value in evidence]
    return evidence


@cache
def own_words() -> Words:
    """Return what checks alone say."""
    return Words(yaml.load(FILE.read_text(encoding="utf-8"), _LOADER))  # noqa: S506 - a safe loader


def _look(text: str) -> str | None:
    """A text as a check says it, or as a run does."""
    own = own_words().get(text, told)
    return own if own is not None else words_of_runs().get(text, told)
