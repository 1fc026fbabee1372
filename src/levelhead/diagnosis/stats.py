"""Small robust statistics in plain Python, so that the doctor starts without numpy.

All functions take finite numbers.  Standard errors assume independent readings unless said otherwise.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation for Gaussian noise (Rousseeuw and Croux 1993)."""

# Set by hand, unless a line says otherwise.
_FEW = 12  # readings of which a median absolute deviation says little
_OF_PLAIN = 0.6  # part of the plain deviation that the spread of few readings has at least
_NOTHING = 1e-6  # part of it below which the robust one is next to nothing
_TELLS_NOISE = 6  # readings before they tell a noise
_SURETY = (1.5, 4.0)  # standard errors of a gap that may be there, and of one that plainly is


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; 0 of nothing."""
    return math.fsum(values) / len(values) if values else 0.0


def median(values: Sequence[float]) -> float:
    """Return the median; 0 for no values."""
    return statistics.median(values) if values else 0.0


def quantile(values: Sequence[float], q: float) -> float:
    """The ``q``-quantile by the nearest rank; 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(q * (len(ordered) - 1))))]


def spread(values: Sequence[float]) -> float:
    """Robust standard deviation: the scaled median absolute deviation (MAD).

    The plain deviation stands in where the MAD is next to nothing beside it (most readings are equal), and bounds it
    from below for fewer than a dozen readings, of which a MAD says little.
    """
    if len(values) < 2:
        return 0.0
    centre, average = median(values), mean(values)
    robust = MAD_TO_SIGMA * median([abs(v - centre) for v in values])
    plain = math.sqrt(math.fsum((v - average) ** 2 for v in values) / (len(values) - 1))
    if len(values) < _FEW:
        return max(robust, _OF_PLAIN * plain)
    return robust if robust > _NOTHING * plain else plain


def noise(values: Sequence[float]) -> float:
    """Standard deviation of reading-to-reading noise, blind to slow trends: spread of first differences / sqrt 2."""
    if len(values) < 3:
        return 0.0
    return spread([b - a for a, b in itertools.pairwise(values)]) / math.sqrt(2)


_LEAST = 1e-300
_EXPONENT = 700  # of the largest exponential that a double holds, next to it


def ln(x: float) -> float:
    """Natural logarithm; what is 0 or negative, and so no reading to take it of, counts as next to nothing."""
    return math.log(max(x, _LEAST))


def log10(x: float) -> float:
    """Decimal logarithm, with the same care as :func:`ln`."""
    return math.log10(max(x, _LEAST))


def sigmoid(x: float) -> float:
    """Logistic function, safe for any finite or infinite ``x``."""
    if x >= 0:
        return 1 / (1 + math.exp(-min(x, _EXPONENT)))
    e = math.exp(max(x, -_EXPONENT))
    return e / (1 + e)


def ramp(x: float, low: float, high: float) -> float:
    """0 up to ``low``, 1 from ``high`` on, linear between; reversed when ``low > high``."""
    if low == high:
        return float(x >= high)
    return min(1.0, max(0.0, (x - low) / (high - low)))


def ratio(a: float, b: float, floor: float = 1e-12) -> float:
    """``|a| / |b|`` with both held above ``floor``."""
    return max(abs(a), floor) / max(abs(b), floor)


def blocks(values: Sequence[float], count: int) -> list[float]:
    """Means of ``count`` consecutive blocks (or the values themselves where there are no more than ``count``)."""
    n = len(values)
    if n <= count:
        return list(values)
    edges = [round(i * n / count) for i in range(count + 1)]
    return [mean(values[a:b]) for a, b in itertools.pairwise(edges)]


def kendall_z(values: Sequence[float], limit: int = 120) -> float:
    """Mann-Kendall trend test (Mann 1945): z-score of the number of rising minus falling pairs.

    Long series are reduced to ``limit`` block means first; ties shrink the score.
    """
    series = blocks(values, limit)
    n = len(series)
    if n < 4:
        return 0.0
    score = 0
    for i, a in enumerate(series):
        for b in series[i + 1 :]:
            score += (b > a) - (b < a)
    variance = n * (n - 1) * (2 * n + 5) / 18
    return (score - math.copysign(1, score)) / math.sqrt(variance) if score else 0.0


@dataclass(frozen=True, slots=True)
class Slope:
    """A least-squares line through readings one step apart.

    Attributes:
        early: Its height at the first reading.
        late: At the last.
        errors: ``late - early`` in standard errors of it; the residuals have n - 2 degrees of freedom.
    """

    early: float
    late: float
    errors: float


def slope(values: Sequence[float]) -> Slope:
    """Fit a line; fewer than three readings have no error, and count as flat."""
    n, centre = len(values), mean(values)
    if n < 3:
        return Slope(centre, centre, 0.0)
    middle = (n - 1) / 2
    width = n * (n * n - 1) / 12
    rise = math.fsum((i - middle) * v for i, v in enumerate(values)) / width
    residual = math.fsum((v - centre - rise * (i - middle)) ** 2 for i, v in enumerate(values))
    error = math.sqrt(residual / (n - 2) / width)
    errors = rise / error if error > _LEAST else math.copysign(math.inf, rise) if rise else 0.0
    return Slope(centre - rise * middle, centre + rise * middle, errors)


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Trailing mean over up to ``window`` readings, same length."""
    out: list[float] = []
    total = 0.0
    for i, v in enumerate(values):
        total += v
        if i >= window:
            total -= values[i - window]
        out.append(total / min(i + 1, window))
    return out


def surety(values: Sequence[float], gap: float, window: int) -> float:
    """0 to 1: how plainly a gap between two means of ``window`` readings stands out of the reading-to-reading noise.

    Fewer than six readings tell no noise, and nothing is held against them.
    """
    if len(values) < _TELLS_NOISE:
        return 1.0
    error = noise(values) * math.sqrt(2 / window)
    return ramp(abs(gap) / error, *_SURETY) if error > 0 else 1.0


def running_median(values: Sequence[float], window: int) -> list[float]:
    """Median of up to ``window`` readings *before* each one; the first gets its own value."""
    out: list[float] = []
    for i, v in enumerate(values):
        before = values[max(0, i - window) : i]
        out.append(median(before) if before else v)
    return out


def change_point(values: Sequence[float]) -> tuple[int, float]:
    """Where the mean shifts most, by least squares over one split.

    Returns:
        ``(index, score)``: the first index of the second part, and the shift in units of its standard error under
        the noise of :func:`noise`; ``(0, 0.0)`` for fewer than four readings.
    """
    n = len(values)
    if n < 4:
        return 0, 0.0
    total = math.fsum(values)
    best, where, left = -1.0, 0, 0.0
    for i in range(1, n):
        left += values[i - 1]
        gap = left / i - (total - left) / (n - i)
        gain = gap * gap * i * (n - i) / n
        if gain > best:
            best, where = gain, i
    sigma = noise(values)
    return where, math.sqrt(best) / sigma if sigma > 0 else (math.inf if best > 0 else 0.0)


def edge(n: int, share: float = 0.15, most: int = 24) -> int:
    """Readings that count as the beginning (or end) of a series of ``n``: a share of it, at least 1."""
    return max(1, min(most, round(share * n), n // 2 if n > 1 else 1))


def longest_run(flags: Sequence[bool]) -> tuple[int, int]:
    """``(start, length)`` of the longest stretch of true flags; ``(0, 0)`` when there is none."""
    best = (0, 0)
    start = None
    for i, flag in enumerate([*flags, False]):
        if flag and start is None:
            start = i
        elif not flag and start is not None:
            if i - start > best[1]:
                best = (start, i - start)
            start = None
    return best


def tail_run(flags: Sequence[bool]) -> int:
    """Number of true flags at the very end."""
    count = 0
    for flag in reversed(flags):
        if not flag:
            break
        count += 1
    return count
