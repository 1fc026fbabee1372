"""One small model a finding: how sure its arguments make it, with weights that are fitted and never turn round.

The log-odds of a finding are ``b + sum_k w_k e_k + sum_j v_j c_j``: ``e_k`` is what the detector's argument ``k``
weighs by hand (so that ``w_k = 1`` and ``v_j = 0`` is the doctor as it is), ``c_j`` a feature of the log as a whole.
``w_k >= 0`` holds every argument to its direction (a monotone additive model, Hastie and Tibshirani 1990); a ridge
pulls ``w`` to 1 and ``v`` to 0, so that what the data say nothing of stays as it was set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from factorylib.evidence import CONTEXT, Features, Heard
from levelhead.diagnosis.detectors.base import PRIOR
from levelhead.diagnosis.ranking import SHIFT

Floats = NDArray[np.float64]
LEAST_POSITIVES = 12
"""Cases of a finding below which its hand-set weights stay."""
ACCEPTABLE = 0.25
"""What an acceptable finding of a run with a fault counts against itself."""
ROUNDS = 300
SOFT = 0.1
"""Ridge on the intercept as a part of that on the weights: how common a finding is, only the data can say."""


@dataclass(frozen=True, slots=True)
class Point:
    """One candidate finding of one log: right or wrong, and how much that counts."""

    heard: Heard
    context: Mapping[str, float]
    right: bool
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Model:
    """Weights of one finding."""

    intercept: float = PRIOR + SHIFT
    arguments: Mapping[str, float] | None = None
    context: Mapping[str, float] | None = None

    def contributions(self, heard: Heard, context: Mapping[str, float]) -> dict[str, float]:
        """What each argument adds to the log-odds."""
        weights, extra = self.arguments or {}, self.context or {}
        own = {key: weights.get(key, 1.0) * value for key, value in heard.arguments.items()}
        return own | {f"log: {name}": extra[name] * context[name] for name in extra}

    def log_odds(self, heard: Heard, context: Mapping[str, float]) -> float:
        return self.intercept + sum(self.contributions(heard, context).values())


HAND = Model()
"""The doctor as it is."""


def points_of(
    rows: Sequence[tuple[Features, frozenset[str], frozenset[str]]], weight: float = 1.0
) -> dict[str, list[Point]]:
    """Candidates by finding.

    What is merely acceptable in a run with a fault is a weak case against, for it should not stand first; a healthy run
    (nothing is right) should not be called anything.
    """
    points: dict[str, list[Point]] = {}
    for features, right, acceptable in rows:
        for heard in features.heard:
            counts = ACCEPTABLE if right and heard.code in acceptable - right else 1.0
            point = Point(heard, features.context, heard.code in right, weight * counts)
            points.setdefault(heard.code, []).append(point)
    return points


def fit(points: Sequence[Point], ridge: float, context_ridge: float) -> Model:
    """Fit one finding's model; the doctor's own where there are too few positive cases."""
    if sum(p.right for p in points) < LEAST_POSITIVES:
        return HAND
    keys = sorted({key for p in points for key in p.heard.arguments})
    x = np.array(
        [[1.0, *(p.heard.arguments.get(k, 0.0) for k in keys), *(p.context[c] for c in CONTEXT)] for p in points]
    )
    y, weight = np.array([p.right for p in points], dtype=float), np.array([p.weight for p in points])
    centre = np.concatenate([[PRIOR + SHIFT], np.ones(len(keys)), np.zeros(len(CONTEXT))])
    pull = np.concatenate([[SOFT * ridge], np.full(len(keys), ridge), np.full(len(CONTEXT), context_ridge)])
    least = np.concatenate([[-np.inf], np.zeros(len(keys)), np.full(len(CONTEXT), -np.inf)])
    beta = _descend(x, y, weight, centre, pull, least)
    n = len(keys)
    return Model(
        float(beta[0]),
        dict(zip(keys, beta[1 : n + 1].tolist(), strict=True)),
        dict(zip(CONTEXT, beta[n + 1 :].tolist(), strict=True)),
    )


def _descend(x: Floats, y: Floats, weight: Floats, centre: Floats, pull: Floats, least: Floats) -> Floats:
    """Accelerated projected gradient with restarts (Beck and Teboulle 2009; O'Donoghue and Candes 2015).

    Columns are scaled by the curvature that each has alone, so that one step size suits all.
    """
    scale = 1 / np.sqrt(0.25 * (weight[:, None] * x**2).sum(0) + pull + 1e-9)
    scaled = x * scale
    step = 1 / float(np.linalg.norm(0.25 * scaled.T @ (weight[:, None] * scaled) + np.diag(pull * scale**2), 2))
    z = centre / scale
    ahead, momentum = z.copy(), 1.0
    for _ in range(ROUNDS):
        error = 1 / (1 + np.exp(-np.clip(scaled @ ahead, -40, 40))) - y
        gradient = scaled.T @ (weight * error) + pull * scale * (ahead * scale - centre)
        new = np.maximum(ahead - step * gradient, least / scale)
        later = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        if (ahead - new) @ (new - z) > 0:
            later = 1.0
        ahead = new + (momentum - 1) / later * (new - z)
        z, momentum = new, later
    return z * scale


def fit_all(points: Mapping[str, Sequence[Point]], ridge: float, context_ridge: float) -> dict[str, Model]:
    """A model for each finding that there is something to learn of."""
    return {code: fit(own, ridge, context_ridge) for code, own in points.items()}


def platt(points: Sequence[tuple[float, float, float]], width: float = 0.5) -> tuple[float, float]:
    """Slope and shift of log-odds (Platt 1999) by majorisation, held near (1, 0) by a Gaussian prior.

    Args:
        points: ``(log-odds, right or wrong, weight)``.
        width: Standard deviation of the prior.
    """
    x, y, w = (np.array(column) for column in zip(*points, strict=True))
    beta, centre = np.array([1.0, 0.0]), np.array([1.0, 0.0])
    design = np.stack([x, np.ones_like(x)], 1)
    # The logistic's curvature is at most a quarter, so that such a step never overshoots (Bohning and Lindsay 1988).
    bound = np.linalg.inv(0.25 * design.T @ (w[:, None] * design) + np.eye(2) / width**2)
    for _ in range(500):
        p = 1 / (1 + np.exp(-np.clip(design @ beta, -40, 40)))
        beta = beta - bound @ (design.T @ (w * (p - y)) + (beta - centre) / width**2)
    return float(beta[0]), float(beta[1])
