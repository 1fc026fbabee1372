"""What the suite leaves to a night: sweeps are shorter by day, and some long runs are not made at all.

``make fuzz`` sets LEVELHEAD_NIGHT=1 and makes the tests marked ``night`` whole.
"""

from __future__ import annotations

import os

import pytest

NIGHT = os.environ.get("LEVELHEAD_NIGHT") == "1"

by_day_left_out = pytest.mark.skipif(not NIGHT, reason="a long run, made by night: make fuzz")
by_night = [pytest.mark.night, by_day_left_out]
"""Marks of a case that is not made by day."""


def cases(day: int, night: int) -> int:
    """How many cases a sweep tries."""
    return night if NIGHT else day
