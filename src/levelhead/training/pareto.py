"""Pareto fronts: which checkpoints no other one beats in every objective, how much they cover, and where the knee is.

Every objective is maximised.  A point dominates another where it is at least as good in every objective and better in
one; the front is what nothing dominates.  Pure functions of numbers, without torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = Sequence[float]
"""One value an objective."""

DRAWS = 256
"""Draws from the errors of the points, for the chance of each to be on the front and the error of the hypervolume."""
CLEAR = 6.0
"""Standard errors by which a point is beaten for good: it is left out of the draws."""
MOST_OBJECTIVES = 5
"""Objectives up to which the hypervolume is computed: its cost grows with the power of their number."""


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation of a policy.

    Attributes:
        step: Optimizer steps done over the whole run.
        stage: The stage that they end in (``start``, ``sft``, ``grpo``).
        values: Score of each objective.
        errors: Their standard errors.
        hypervolume: Of the front of all points up to this one; ``None`` where it is not computed.
    """

    step: int
    stage: str
    values: tuple[float, ...]
    errors: tuple[float, ...]
    hypervolume: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values for a file."""
        row = {"step": self.step, "stage": self.stage, "values": list(self.values), "errors": list(self.errors)}
        return {**row, "hypervolume": self.hypervolume}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Point:
        """Rebuild a point from :meth:`to_json`; a number that JSON has no word for comes as text."""
        values, errors = (tuple(float(number) for number in row[key]) for key in ("values", "errors"))
        volume = row.get("hypervolume")
        return cls(int(row["step"]), str(row["stage"]), values, errors, None if volume is None else float(volume))


def dominates(one: Values, other: Values) -> bool:
    """Whether one point is at least as good as another in every objective and better in one; never with NaN."""
    pairs = list(zip(one, other, strict=True))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def front_of(points: Sequence[Values]) -> list[int]:
    """Return the indices of the points that none dominates, in order; points with a value that is not finite never are.

    Of points with equal values the first one stands for all.
    """
    finite = [i for i, point in enumerate(points) if all(math.isfinite(value) for value in point)]
    first: dict[tuple[float, ...], int] = {}
    for i in finite:
        first.setdefault(tuple(points[i]), i)
    return [i for i in first.values() if not any(dominates(points[j], points[i]) for j in first.values())]


def hypervolume(points: Sequence[Values], reference: Values) -> float:
    """Return the volume that the points dominate above a reference point, exactly.

    Two objectives by one sweep, more by slices along the last one (While et al. 2006, "A faster algorithm for
    calculating hypervolume"): O(n^(d-1)) for n points and d objectives.  Points that are not above the reference in
    every objective add nothing.
    """
    above = [
        tuple(float(value) for value in point)
        for point in points
        if all(math.isfinite(a) and a > b for a, b in zip(point, reference, strict=True))
    ]
    return _volume([above[i] for i in front_of(above)], tuple(map(float, reference)))


def volume_of(points: Sequence[Values], reference: Values) -> float | None:
    """Return the hypervolume, or ``None`` with more than :data:`MOST_OBJECTIVES` objectives."""
    return hypervolume(points, reference) if len(reference) <= MOST_OBJECTIVES else None


def _volume(points: Sequence[tuple[float, ...]], reference: tuple[float, ...]) -> float:
    """The volume of points that are a front, all above the reference."""
    if not points:
        return 0.0
    if len(reference) == 1:
        return max(point[0] for point in points) - reference[0]
    if len(reference) == 2:
        area, height = 0.0, reference[1]
        for x, y in sorted(points, reverse=True):  # from the right, along a front: each rises above those before
            area += (x - reference[0]) * (y - height)
            height = y
        return area
    ordered = sorted(points, key=lambda point: -point[-1])
    floors = [*(point[-1] for point in ordered[1:]), reference[-1]]
    total = 0.0
    for count, (point, floor) in enumerate(zip(ordered, floors, strict=True), start=1):
        if point[-1] > floor:
            slab = [other[:-1] for other in ordered[:count]]
            total += (point[-1] - floor) * _volume([slab[i] for i in front_of(slab)], reference[:-1])
    return total


def contributions(points: Sequence[Values], reference: Values) -> list[float]:
    """Return what the hypervolume loses without each of the points."""
    whole = hypervolume(points, reference)
    return [whole - hypervolume([*points[:i], *points[i + 1 :]], reference) for i in range(len(points))]


def knee_of(points: Sequence[Values]) -> int | None:
    """Return the index of the knee among the points of a front, or ``None`` where there is none.

    Objectives are scaled so that the worst value on the front is 0 and the best is 1.  The knee is the point that lies
    farthest beyond the plane through the ends (one 1, the others 0), which is the one of the largest sum (Das 1999,
    "On characterizing the knee of the Pareto curve").  Of equal ones the first.
    """
    if not points:
        return None
    table = np.asarray(points, dtype=float)
    low, high = table.min(axis=0), table.max(axis=0)
    scaled = (table - low) / np.where(high > low, high - low, 1.0)
    return int(np.argmax(np.round(scaled.sum(axis=1), 12)))


def bounded(points: Sequence[Values], reference: Values, limit: int) -> list[int]:
    """Return the indices of at most ``limit`` points of a front: the knee, and those that the hypervolume needs most.

    Points go one by one, each time the one without which the hypervolume loses least (of equal ones the first); beyond
    :data:`MOST_OBJECTIVES` objectives the oldest goes.  The volume is taken from the reference, or from a tenth of the
    front's range beyond its worst values where these are lower, so that the ends of the front count.
    """
    knee = knee_of(points)
    remaining = list(range(len(points)))
    columns = list(zip(reference, *points, strict=True))
    floor = [min(own[0], min(own[1:]) - 0.1 * (max(own[1:]) - min(own[1:]) or 1.0)) for own in columns if own[1:]]
    while len(remaining) > max(1, limit):
        losses = [0.0] * len(remaining)
        if len(reference) <= MOST_OBJECTIVES:
            losses = contributions([points[i] for i in remaining], floor)
        remaining.remove(min((i for i in remaining if i != knee), key=lambda i: losses[remaining.index(i)]))
    return remaining


def chances(points: Sequence[Point], reference: Values, rng: np.random.Generator) -> tuple[list[float], float | None]:
    """Return the chance of each point to be on the front, and the standard error of the hypervolume.

    Scores are drawn :data:`DRAWS` times from normal distributions of their errors, independently.  All evaluations of a
    run score the same items, so that their true differences are surer than this says.
    """
    if not points:
        return [], None
    values = np.array([point.values for point in points], dtype=float)
    errors = np.nan_to_num(np.array([point.errors for point in points], dtype=float))
    near = _near(values, errors)
    values, errors = values[near], errors[near]
    hits, volumes = np.zeros(len(near)), []
    earlier = np.triu(np.ones((len(near), len(near)), dtype=bool), k=1)  # of equal points the first stands for all
    for _ in range(DRAWS):
        draw = values + errors * rng.standard_normal(values.shape)
        at_least = (draw[:, None, :] >= draw[None, :, :]).all(axis=2)
        better = (draw[:, None, :] > draw[None, :, :]).any(axis=2)
        ahead = ~(at_least & (better | earlier)).any(axis=0) & np.isfinite(draw).all(axis=1)
        hits += ahead
        if len(reference) <= 3:
            volumes.append(hypervolume(draw[ahead].tolist(), reference))
    odds = np.zeros(len(points))
    odds[near] = hits / DRAWS
    return odds.tolist(), float(np.std(volumes, ddof=1)) if volumes else None


def _near(values: NDArray[np.float64], errors: NDArray[np.float64]) -> NDArray[np.int64]:
    """Indices of the points that no other one beats in every objective by more than :data:`CLEAR` standard errors."""
    clear = [
        bool((values - value > CLEAR * np.hypot(errors, error)).all(axis=1).any())
        for value, error in zip(values, errors, strict=True)
    ]
    return np.flatnonzero(~np.array(clear))


def describe(
    objectives: Sequence[str],
    reference: Values,
    points: Sequence[Point],
    rng: np.random.Generator,
    members: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """Return the document of a front: every point with its place, the hypervolume and the knee.

    Args:
        objectives: Their names.
        reference: The reference point.
        points: All evaluations, oldest first, that of the policy before training among them.
        rng: Draws for the chances.
        members: Where the weights of some steps are.
    """
    on_front = front_of([point.values for point in points])
    odds, error = chances(points, reference, rng)
    knee = knee_of([points[i].values for i in on_front])
    rows: list[dict[str, Any]] = []
    for i, point in enumerate(points):
        weights = (members or {}).get(point.step)
        row = {**point.to_json(), "front": i in on_front, "chance": odds[i]}
        rows.append(row if weights is None else {**row, "weights": weights})
    return {
        "objectives": list(objectives),
        "reference": list(reference),
        "hypervolume": volume_of([points[i].values for i in on_front], reference),
        "hypervolume_se": error,
        "knee": points[on_front[knee]].step if knee is not None else None,
        "points": rows,
    }
