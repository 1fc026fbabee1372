"""The words that primer texts are made of, and words that nobody has ever seen."""

from __future__ import annotations

import json
import random
from pathlib import Path


def _read(name: str) -> dict[str, list[str]]:
    lists: dict[str, list[str]] = json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    return lists


_LISTS = _read("words.json")


def _words(name: str) -> tuple[str, ...]:
    return tuple(" ".join(_LISTS[name]).split())


NAMES = _words("names")
"""First names."""
PEOPLE = _words("people")
"""What a person is called by."""
ADJECTIVES = _words("adjectives")
"""What a person is like."""
PLACES = _words("places")
"""Where a scene is set."""
THINGS = _words("things")
"""What can be held, moved or sold."""
VERBS = _words("verbs")
"""What can be done to a thing, in the past tense."""
COLORS = _words("colors")
"""Colours."""
ATTRIBUTES = _words("attributes")
"""What can be said of somebody."""
COMMON = _words("common")
"""Frequent English words, for the tokenizer and as values."""
LEXICON = _words("lexicon")
"""Further words that a tokenizer should know, of the kind that stories about people are told in."""
DEEDS = _read("deeds.json")
"""What people do badly and well, and questions about it."""
ENDINGS = ("s", "ed", "ing", "er", "ly", "'s")
"""Endings that a tokenizer should know."""


_ONSETS = _words("onsets")
_VOWELS = _words("vowels")
_CODAS = _words("codas")


def invent(rng: random.Random) -> str:
    """Make up a word of one to three syllables: to be copied piece by piece, as no vocabulary holds it."""
    syllables = rng.choice((1, 2, 2, 3))
    return "".join(
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + (rng.choice(_CODAS) if rng.random() < 0.5 else "")
        for _ in range(syllables)
    )


def pick(rng: random.Random, words: tuple[str, ...], invented: float = 0.15) -> str:
    """Return one of ``words``, or with probability ``invented`` a word that does not exist."""
    return invent(rng) if rng.random() < invented else rng.choice(words)
