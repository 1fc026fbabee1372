"""Whether one curve rose, fell or stood still, beyond its noise; and where it begins, ends, crosses or shifts."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelhead.diagnosis import stats
from levelhead.diagnosis.history import Series
from levelhead.documents import load_own

_SHORT = 6

# Set by hand on the development logs (docs/doctor.md), unless a line says otherwise.
# Weights are log-odds; a range begins where nothing counts and ends where all does.
_NOISE_ROWS = 4  # readings before their noise is one
_UNIT_OF_SPREAD = 0.02  # share of the spread that a unit of change is at least
_LEVEL_OF_SPREAD = 0.1  # the same of a level
_MATTERS = (0.05, 0.4)  # change, in units or levels, that matters
_SURE = (1.5, 4.0)  # standard errors of a change
_LEVEL_ROWS = 8  # readings of a level, where there are as many
_PROOF_ROWS = 4  # readings before no gain is proof
_SLOPE_VARIANCE = 12  # variance of a slope's gain over n readings is 12 / n of theirs
_PROOF_RANGE = (0.5, 0.25)  # share of the room that the gain could have been at most
_REST_ROWS = 3  # readings that a first one may stand apart from
_TWO = 0.25  # surety of two readings that go one way,
_THREE = 0.5  # three,
_FOUR = 0.6  # four and more,
_FEW = 0.1  # and of those that do not
_PEAK_SHARE = 0.1  # share of the readings that a peak is the mean of,
_PEAK_MOST = 12  # at most so many
_CRASH_ERRORS = 1.5  # standard errors of a crash beyond the highest by chance, sqrt(2 ln n)
_GIVEN_BACK = (0.4, 0.8)  # share of the gain that was lost again
_CRASH_SURE = 4  # standard errors from the first doubt of a crash to none
_LOST_RANGE = (0.25, 0.6)  # share of the level that was lost
_LOST_LEAST = (0.1, 0.3)  # the same for one that was gained on the way
_HALF_WAY = 0.5  # part of the drop at which it begins to show
_ONE_IN = 50  # one exception in so many readings does not end a stretch


THRESHOLDS = Path(__file__).with_name("thresholds.yaml")
"""Numbers of the detectors: how much each argument weighs, and from which readings on."""


@functools.cache
def thresholds() -> Mapping[str, Mapping[str, Any]]:
    """Numbers by name, by the class that goes by them."""
    loaded: Mapping[str, Mapping[str, Any]] = load_own(THRESHOLDS)
    return loaded


class Numbered:
    """A class whose numbers stand under its name in ``thresholds.yaml``."""

    def __getattr__(self, name: str) -> Any:
        """Return the number called ``name``."""
        try:
            return thresholds()[type(self).__name__][name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no number {name} in {THRESHOLDS.name}") from None


@dataclass(frozen=True, slots=True)
class Trend:
    """How one series moved, in strengths between 0 and 1.

    Attributes:
        early: Mean of its beginning.
        late: Mean of its end.
        rise: How surely, and how far, the end stands above the beginning.
        fall: The same for below.
        crash: How surely the end stands below a peak reached on the way, and how much of it was lost.
        peak: Highest smoothed value.
        peak_step: Where it stood.
        drop_step: Where the way down from the peak begins to show; the last step when there is none.
        scale: What counts as a large change: the spread of rewards within groups, or the noise.
        n: Readings.
    """

    early: float
    late: float
    rise: float
    fall: float
    crash: float
    peak: float
    peak_step: float
    drop_step: float
    scale: float
    n: int


def trend(series: Series, scale: float | None = None, errors: Series | None = None) -> Trend:
    """Return how a series moves over the run.

    The gain is compared with the noise from reading to reading (is it real) and with ``scale`` and the level (does
    it matter); a gain counts by the smaller of the two.

    Args:
        series: Readings in order.
        scale: A natural unit of change, such as the spread of rewards within groups.
        errors: Standard errors of the readings, where they are known: then two readings can be proof.
    """
    values, n = series.values, len(series)
    if n < 2:
        level = values[0] if values else 0.0
        step = series.steps[0] if n else 0.0
        return Trend(level, level, 0.0, 0.0, 0.0, level, step, step, scale or 0.0, n)
    m = stats.edge(n)
    early, late = stats.mean(values[:m]), stats.mean(values[-m:])
    sigma = stats.noise(values) if n >= _NOISE_ROWS else 0.0
    spread = max(values) - min(values)
    unit = max(scale or 0.0, sigma, _UNIT_OF_SPREAD * spread, 1e-12)
    gain = late - early
    relative = abs(gain) / max(abs(early), _LEVEL_OF_SPREAD * spread, 1e-12)
    matters = stats.ramp(max(abs(gain) / unit, relative), *_MATTERS)
    if n < _SHORT:
        sure = max(_short_surety(values, gain), _surety_by_error(gain, errors))
    else:
        z = abs(gain) / max(sigma * math.sqrt(2 / m), 1e-12)
        tau = stats.kendall_z(values)
        sure = stats.ramp(max(z, abs(tau) if tau * gain > 0 else 0.0), *_SURE)
    strength = sure * matters
    crash, peak, peak_step, drop_step = _crash(series, sigma, early, late)
    rise, fall = (strength, 0.0) if gain > 0 else (0.0, strength)
    return Trend(early, late, rise, fall, crash, peak, peak_step, drop_step, unit, n)


@dataclass(frozen=True, slots=True)
class Height:
    """Shares of a known maximum: the highest that a series has had, and where it stands, one standard error added."""

    peak: float
    late: float


def height_of(values: list[float], top: float) -> Height:
    """Where a series stands below ``top``, and stood at best, by means of eight readings or more where it has them."""
    m = max(stats.edge(len(values)), min(len(values), _LEVEL_ROWS))
    error = stats.noise(values) / math.sqrt(m)
    return Height(max(stats.smooth(values, m)[m - 1 :]) / top, (stats.mean(values[-m:]) + error) / top)


def proven_flat(series: Series, top: float | None) -> float:
    """0 to 1: how surely a gain that matters (a part of the room above, or of the level) would have been seen.

    Args:
        series: Readings in order.
        top: Highest value that they can take, where it is known.
    """
    n = len(series)
    if n < _PROOF_ROWS:
        return 0.0
    m = stats.edge(n)
    early, late = stats.mean(series.values[:m]), stats.mean(series.values[-m:])
    room = top - early if top is not None else max(abs(early), max(series.values) - min(series.values))
    error = stats.noise(series.values) * math.sqrt(_SLOPE_VARIANCE / n)
    return stats.ramp((late - early + 2 * error) / max(room, 1e-12), *_PROOF_RANGE)


def _short_surety(values: list[float], gain: float) -> float:
    """Few readings say little: all steps one way is worth half, for a handful of them more.

    So is a first reading that all others leave far behind.
    """
    moves = [b - a for a, b in itertools.pairwise(values)]
    same = all(move * gain > 0 for move in moves)
    rest = values[1:]
    apart = min(abs(v - values[0]) for v in rest) > 2 * (max(rest) - min(rest)) and len(rest) >= _REST_ROWS
    return {2: _TWO, 3: _THREE}.get(len(values), _FOUR) if gain and (same or apart) else _FEW


def _surety_by_error(gain: float, errors: Series | None) -> float:
    """How surely the last reading differs from the first, by their own standard errors; 0 where nobody knows them."""
    if errors is None or len(errors) < 2:
        return 0.0
    return stats.ramp(abs(gain) / max(math.hypot(errors.values[0], errors.values[-1]), 1e-12), *_SURE)


def _crash(series: Series, sigma: float, early: float, late: float) -> tuple[float, float, float, float]:
    values, steps, n = series.values, series.steps, len(series)
    window = stats.edge(n, _PEAK_SHARE, _PEAK_MOST)
    smooth = stats.smooth(values, window)
    at = max(range(n), key=smooth.__getitem__)
    peak = smooth[at]
    floor = min(min(smooth), 0.0 if min(values) >= 0 else min(values))
    drop = peak - late
    if n < _SHORT or drop <= 0 or at >= n - 2:
        return 0.0, peak, steps[at], steps[-1]
    z = drop / max(sigma * math.sqrt(2 / window), 1e-12)
    lost = drop / max(peak - floor, 1e-12)
    # The highest of n noisy means is high by chance: about sqrt(2 ln n) standard errors.
    bar = _CRASH_ERRORS + math.sqrt(2 * math.log(n))
    # What had been gained and is lost again counts too, where it is a part of the level that matters.
    given_back = stats.ramp(drop / max(peak - early, 1e-12), *_GIVEN_BACK) if peak > early else 0.0
    crash = stats.ramp(z, bar, bar + _CRASH_SURE) * max(
        stats.ramp(lost, *_LOST_RANGE), given_back * stats.ramp(lost, *_LOST_LEAST)
    )
    level = late + _HALF_WAY * drop
    first = next((i for i in range(at, n) if max(smooth[i:]) < level), n - 1)
    start = max(at, first - window + 1)
    return crash, peak, steps[at], steps[start]


def index_at(series: Series, step: float) -> int | None:
    """Index of the reading at, or last before, ``step``; the first one where all come later."""
    return max(0, bisect.bisect_right(series.steps, step) - 1) if series.steps else None


def ends(series: Series, share: float = 0.15) -> tuple[float, float]:
    """Medians of the beginning and of the end."""
    m = stats.edge(len(series), share)
    return stats.median(series.values[:m]), stats.median(series.values[-m:])


def crossing(series: Series, level: float, above: bool = True, persist: int = 3) -> float | None:
    """First step from which most of the next ``persist`` readings stand beyond ``level``."""
    beyond = [(v > level) if above else (v < level) for v in series.values]
    n = len(beyond)
    for i, flag in enumerate(beyond):
        if flag:
            following = beyond[i : i + persist]
            if 2 * sum(following) > len(following) or i == n - 1:
                return series.steps[i]
    return None


def shift_at(series: Series, step: float, width: int = 8) -> tuple[float, float] | None:
    """Medians of up to ``width`` readings before, and after, ``step``; ``None`` without two on each side."""
    split = bisect.bisect_right(series.steps, step)
    before, after = series.values[max(0, split - 1 - width) : split - 1], series.values[split : split + width]
    if len(before) < 2 or len(after) < 2:
        return None
    return stats.median(before), stats.median(after)


def constant(values: Sequence[float], tolerance: float = 1e-9) -> bool:
    """Whether all readings are equal (up to rounding)."""
    return bool(values) and max(values) - min(values) <= tolerance * max(1.0, abs(values[0]))


def tail_start(series: Series, holds: Callable[[float], bool]) -> int:
    """Index from which ``holds`` is true to the end, one exception in fifty readings allowed."""
    return min(start_of_end([holds(value) for value in series.values], _ONE_IN), len(series) - 1)


def start_of_end(flags: Sequence[bool], one_in: int, least: int = 0) -> int:
    """First index from which flags are true to the end; how many there are where the last ones are not.

    Args:
        flags: In order.
        one_in: One exception in so many of them is allowed.
        least: Exceptions that always are.
    """
    start, misses = len(flags), 0
    for i in range(len(flags) - 1, -1, -1):
        if flags[i]:
            start = i
        else:
            misses += 1
            if misses > max(least, (len(flags) - i) // one_in):
                break
    return start
