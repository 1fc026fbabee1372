"""From metric lines to curves: gaps where a number is absent, thinned where there are too many points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from levelhead.report.reading import step_of

MOST_POINTS = 1500
"""Points of a curve beyond which it is thinned."""

LARGEST = 1e60
"""A number beyond it counts as infinite: sums and squares of it would be, and single precision ends at 3.4e38."""

NOT_FINITE = ("nan", "inf", "-inf")
"""How a run writes a number that strict JSON has no way to write."""


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of a run over its steps.

    Attributes:
        name: The metric.
        steps: Steps at which it exists, shape (n,).
        values: Its values, shape (n,); ``None`` where it was not finite.
    """

    name: str
    steps: list[int]
    values: list[float | None]

    def __bool__(self) -> bool:
        return any(value is not None for value in self.values)

    @property
    def finite(self) -> list[float]:
        """The finite values, in order."""
        return [value for value in self.values if value is not None]

    @property
    def broken_steps(self) -> list[int]:
        """Steps at which the metric was NaN or infinite."""
        return [step for step, value in zip(self.steps, self.values, strict=True) if value is None]


def series(rows: Iterable[Mapping[str, Any]], name: str) -> Series:
    """Collect one metric from lines in order of step."""
    pairs = [(step_of(row), number(row[name])) for row in rows if _is_measured(row.get(name))]
    return Series(name, [step for step, _ in pairs], [value for _, value in pairs])


def names_under(rows: Iterable[Mapping[str, Any]], prefix: str, suffix: str = "") -> list[str]:
    """Names of the numeric metrics that begin and end so, in order of appearance."""
    names: dict[str, None] = {}
    for row in rows:
        for key, value in row.items():
            if key.startswith(prefix) and key.endswith(suffix) and _is_measured(value):
                names[key] = None
    return list(names)


def number(value: Any) -> float | None:
    """Return a finite float, or ``None`` for anything else; see :data:`LARGEST`."""
    try:
        return float(value) if _is_number(value) and abs(value) <= LARGEST else None
    except OverflowError:  # a whole number beyond floating point
        return None


def _is_measured(value: Any) -> bool:
    """Whether a value is a metric: a number, or the text that stands for one that was not finite."""
    return _is_number(value) or (isinstance(value, str) and value in NOT_FINITE)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def smooth(curve: Series) -> Series:
    """Centred moving mean over about a fifteenth of the curve; gaps are passed over.

    Short curves (fewer than 12 points) come back as they are.
    """
    n = len(curve.values)
    half = max(1, n // 30)
    if n < 12:
        return curve
    smoothed: list[float | None] = []
    sums = list(accumulate((value or 0.0 for value in curve.values), initial=0.0))
    counts = list(accumulate((value is not None for value in curve.values), initial=0))
    for index in range(n):
        # Narrow at the ends, so that a steep start is not flattened; never so narrow that they show the noise.
        reach = max(half // 2, min(half, index, n - 1 - index))
        first, last = max(0, index - reach), min(n, index + reach + 1)
        count = counts[last] - counts[first]
        smoothed.append((sums[last] - sums[first]) / count if count else None)
    return Series(curve.name, curve.steps, smoothed)


def thin(curve: Series) -> Series:
    """Keep at most about ``MOST_POINTS`` points: the lowest and the highest of every bucket, so that spikes survive."""
    n = len(curve.steps)
    if n <= MOST_POINTS:
        return curve
    width = math.ceil(n / (MOST_POINTS / 2))
    indices: list[int] = []
    for start in range(0, n, width):
        bucket = range(start, min(start + width, n))
        candidates = [index for index in bucket if curve.values[index] is not None]
        if candidates:
            low = min(candidates, key=lambda index: curve.values[index] or 0.0)
            high = max(candidates, key=lambda index: curve.values[index] or 0.0)
            indices += sorted({low, high})
        else:
            indices.append(start)
    return Series(curve.name, [curve.steps[i] for i in indices], [curve.values[i] for i in indices])


def thin_together(curves: Sequence[Series]) -> list[Series]:
    """Thin curves on the same steps by the same steps (every so-manyth), as stacked areas need."""
    n = max((len(curve.steps) for curve in curves), default=0)
    stride = max(1, math.ceil(n / MOST_POINTS))
    return [Series(curve.name, curve.steps[::stride], curve.values[::stride]) for curve in curves]


def on_steps(curve: Series, steps: Sequence[int]) -> Series:
    """Put a curve on other steps, 0 standing where it has no value."""
    value_by_step = dict(zip(curve.steps, curve.values, strict=True))
    values = [value_by_step.get(step) for step in steps]
    return Series(curve.name, list(steps), [0.0 if value is None else value for value in values])


def compact(value: float | None) -> float | None:
    """Round to six significant digits, for a page of curves is no archive; ``None`` for what is not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
