"""Names of strata: short, printable, and fit to stand in the name of a metric."""

from __future__ import annotations

from typing import Any

MAX_CHARS = 32
"""Longest value of a stratum; a longer one is cut."""
MAX_VALUES = 50
"""Most values of one key: scores of more strata than this, each of a few items, say nothing."""


def stratum_value(value: Any) -> str:
    """Return what a stratum is called that is made of a value from data.

    White space becomes single blanks, what cannot be printed is left out, and ``/`` and ``=``, which separate the parts
    of a metric's name, become ``.`` and ``:``.  ``None`` and empty text are ``none``.

    >>> stratum_value("hard/two  steps")
    'hard.two steps'
    """
    text = "" if value is None else str(value)
    text = "".join(c for c in " ".join(text.split()) if c.isprintable()).replace("/", ".").replace("=", ":")
    return text[:MAX_CHARS].strip() or "none"
