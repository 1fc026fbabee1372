"""From a judge's raw grades to a common scale: a monotone map, fitted to answers of known worth."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

RAW_SHARE = 0.25
"""Share of the raw grade in the common scale: without it grades between two knots of one height would be equal."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A monotone map from [0, 1] to [0, 1].

    Attributes:
        knots: (raw grade, value), both rising; between them the map is linear, beyond them flat.
    """

    knots: tuple[tuple[float, float], ...]

    def __call__(self, grade: float) -> float:
        """Return a grade on the common scale: three quarters of the map, and one of the grade itself."""
        return min((1 - RAW_SHARE) * self.fitted(grade) + RAW_SHARE * grade, 1.0)  # rounding may go beyond

    def fitted(self, grade: float) -> float:
        """Return the map's value: how likely an answer of this grade is right, right and wrong ones being as many."""
        if not self.knots:
            return grade
        at = bisect.bisect_left(self.knots, (grade,))
        if at == 0:
            return self.knots[0][1]
        if at == len(self.knots):
            return self.knots[-1][1]
        (x0, y0), (x1, y1) = self.knots[at - 1], self.knots[at]
        return y0 + (y1 - y0) * (grade - x0) / (x1 - x0)


def fit_scale(grades: Sequence[float], labels: Sequence[bool]) -> Scale:
    """Return the non-decreasing map that comes closest to the labels, in squares (isotonic regression).

    Pool-adjacent-violators (Ayer et al. 1955); right and wrong answers weigh the same as a whole, however many there
    are of each.

    Args:
        grades: In [0, 1].
        labels: Whether each answer is right; some are and some are not.
    """
    share = {True: 0.5 / max(sum(labels), 1), False: 0.5 / max(len(labels) - sum(labels), 1)}
    points: dict[float, list[float]] = {}
    for grade, label in zip(grades, labels, strict=True):
        total = points.setdefault(grade, [0.0, 0.0])
        total[0] += share[label] * label
        total[1] += share[label]
    blocks: list[tuple[list[float], float, float]] = []  # (raw grades, sum of labels, weight)
    for grade in sorted(points):
        block: tuple[list[float], float, float] = ([grade], points[grade][0], points[grade][1])
        while blocks and blocks[-1][1] * block[2] >= block[1] * blocks[-1][2]:
            raw, value, weight = blocks.pop()
            block = ([*raw, *block[0]], value + block[1], weight + block[2])
        blocks.append((block[0], block[1], block[2]))
    knots = [(grade, value / weight) for raw, value, weight in blocks for grade in dict.fromkeys((raw[0], raw[-1]))]
    return Scale(tuple(knots))
