"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN = "_.:-=+*#"
"""The same for a terminal that has no block characters."""


def spark(values: Sequence[float], width: int, *, plain: bool = False) -> str:
    """Return the last readings as a line of blocks, the least of them at the bottom and the largest at the top.

    More readings than columns are averaged in equal parts, the last part ending with the last reading.

    Args:
        values: Readings in order; one that is not finite is a gap.
        width: Columns at most.
        plain: Use ASCII characters.
    """
    if not values or width < 1:
        return ""
    columns = min(width, len(values))
    ends = [len(values) * (i + 1) // columns for i in range(columns)]
    parts = [values[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    means = [sum(finite) / len(finite) if (finite := [v for v in p if math.isfinite(v)]) else math.nan for p in parts]
    seen = [mean for mean in means if math.isfinite(mean)]
    if not seen:
        return " " * columns
    low, high = min(seen), max(seen)
    levels = PLAIN if plain else BLOCKS
    return "".join(_level(mean, low, high, levels) for mean in means)


def _level(value: float, low: float, high: float, levels: str) -> str:
    if not math.isfinite(value):
        return " "
    if high <= low:
        return levels[len(levels) // 2]
    return levels[min(int((value - low) / (high - low) * len(levels)), len(levels) - 1)]
