"""Rewards of the conflicting pairs, in [0, 1]; each reads the words of an answer alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

COLOURS = ("red", "blue", "green", "grey")
FILLERS = ("well", "so", "then", "hm")
SEA = ("wave", "salt", "boat", "tide")
HILL = ("rock", "path", "goat", "snow")
LONGEST = 12


def complete(completions: Sequence[str], **_: Any) -> list[float]:
    """The root of the share of the four colours that an answer names: the first is worth most."""
    return [(len(set(COLOURS) & set(text.split())) / len(COLOURS)) ** 0.5 for text in completions]


def brief(completions: Sequence[str], **_: Any) -> list[float]:
    """1 for no word at all, 0 for twelve or more."""
    return [max(0.0, 1 - len(text.split()) / LONGEST) for text in completions]


def sea(completions: Sequence[str], **_: Any) -> list[float]:
    """Words of the sea against words of the hill, of four words or more; half of it for a draw."""
    return [_balance(text, SEA, HILL) for text in completions]


def hill(completions: Sequence[str], **_: Any) -> list[float]:
    """The opposite of ``sea``, asked for by another word of the prompt."""
    return [_balance(text, HILL, SEA) for text in completions]


def _balance(text: str, wanted: Sequence[str], unwanted: Sequence[str]) -> float:
    words = text.split()
    good, bad = sum(word in wanted for word in words), sum(word in unwanted for word in words)
    return min(max(0.5 + (good - bad) / (2 * max(len(words), 4)), 0.0), 1.0)


def preferred(completions: Sequence[str], weight: Sequence[float], **_: Any) -> list[float]:
    """What an answer is worth to somebody who weighs brevity by ``weight`` and completeness by the rest."""
    both = zip(weight, brief(completions), complete(completions), strict=True)
    return [share * short + (1 - share) * whole for share, short, whole in both]
