"""Weights of the tasks' gradients in the merged one, from their inner products, by search and by the definitions.

What is closed form or a solver elsewhere is here a minimisation over the simplex, an enumeration of active sets, or the
algorithm's own loop, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, permutations, product

import numpy as np
from numpy.typing import NDArray

from levelhead.recipe.objective import MergeSection
from oracle.textbook.records import Floats, UnprovedError

Products = NDArray[np.float64]
"""(m, m) inner products of the gradients of m tasks."""

PAGES = frozenset({"sum", "mean", "cagrad", "pcgrad", "upgrad", "mgda", "aligned_mtl", "nash_mtl"})
"""Aggregators whose definition is written down here."""
ZERO = 1e-24
"""Squared norm, against the largest, below which a gradient is none."""


def merge_weights(merge: MergeSection, kind: str, products: Products) -> list[Floats]:
    """Return the weights, shape (m,), that an aggregator may give to the gradients of m tasks.

    There are several where PCGrad draws an order for three tasks or more.

    Args:
        merge: The ``grpo.merge`` section.
        kind: The aggregator in force.
        products: Inner products of the gradients of the tasks' merged terms.

    Raises:
        UnprovedError: No definition is written down here for this aggregator.
    """
    if kind not in PAGES:
        raise UnprovedError(f"grpo.merge.kind: {kind}")
    m = len(products)
    if kind == "sum":
        return [np.ones(m)]
    if kind == "mean":
        return [np.ones(m) * (1.0 if merge.scale == "sum" else 1 / m)]
    squares = np.diag(products)
    live = [i for i in range(m) if squares[i] > ZERO * squares.max()]
    unit = products[np.ix_(live, live)] / max(squares.max(), 1e-300)
    ways = [np.ones(1)] if len(live) == 1 else _solve(merge, kind, unit) if live else []
    on_mean = kind not in ("pcgrad", "nash_mtl")
    # Papers' means are over all tasks; where a gradient is zero the others are merged as if it were not there.
    scale = (len(live) / m if on_mean else 1.0) * (m if on_mean and merge.scale == "sum" else 1.0)
    candidates = []
    for way in ways or [np.zeros(0)]:
        weights = np.zeros(m)
        weights[live] = way * scale
        candidates.append(weights)
    return candidates


def _solve(merge: MergeSection, kind: str, products: Products) -> list[Floats]:
    if kind == "cagrad":
        return [_cagrad(products, merge.c)]
    if kind == "pcgrad":
        return _pcgrad(products)
    if kind == "upgrad":
        return [_upgrad(products)]
    if kind == "mgda":
        return [_mgda(products)]
    if kind == "nash_mtl":
        return [_nash(products)]
    return [_aligned(products)]


def _cagrad(products: Products, c: float) -> Floats:
    """Liu et al. 2021, arXiv:2110.14048, algorithm 1: ``g0 + c |g0| g_w / |g_w|``, w minimising its dual."""
    m = len(products)
    equal = np.full(m, 1 / m)
    radius = c * math.sqrt(max(float(equal @ products @ equal), 0.0))
    if radius < 1e-12:
        return equal

    def dual(w: Floats) -> float:
        return float(w @ products @ equal) + radius * math.sqrt(max(float(w @ products @ w), 0.0))

    w = _least_on_simplex(dual, m)
    norm = math.sqrt(max(float(w @ products @ w), 0.0))
    return equal + radius / norm * w if norm > 1e-12 else equal


def _least_on_simplex(value: object, m: int) -> Floats:
    """Minimise a convex function over the simplex by golden sections along the lines between corners, in turn."""
    assert callable(value)
    w = np.full(m, 1 / m)
    for _ in range(1 if m == 2 else 400):
        before = w.copy()
        for i, j in combinations(range(m), 2):
            budget = w[i] + w[j]

            def along(x: float, i: int = i, j: int = j, budget: float = budget) -> float:
                moved = w.copy()
                moved[i], moved[j] = x, budget - x
                return float(value(moved))

            w[i] = _golden(along, budget)
            w[j] = budget - w[i]
        if np.abs(w - before).max() < 1e-12:
            break
    return w


def _golden(along: object, end: float) -> float:
    """Return where a convex function on [0, end] is least."""
    assert callable(along)
    low, high, share = 0.0, end, (math.sqrt(5) - 1) / 2
    for _ in range(90):
        left, right = high - share * (high - low), low + share * (high - low)
        if along(left) < along(right):
            high = right
        else:
            low = left
    middle = (low + high) / 2
    return min((0.0, end, middle), key=lambda x: (float(along(x)), x))


def _pcgrad(products: Products) -> list[Floats]:
    """Yu et al. 2020, arXiv:2001.06782, algorithm 1, once for every order in which the others may come."""
    m = len(products)
    ways: list[list[Floats]] = []
    for i in range(m):
        own = []
        for order in permutations([j for j in range(m) if j != i]):
            weights = np.zeros(m)
            weights[i] = 1.0
            for j in order:
                slope = float(products[j] @ weights)
                if slope < 0:
                    weights[j] -= slope / products[j, j]
            own.append(weights)
        ways.append(own)
    return [np.sum(choice, axis=0) for choice in product(*ways)][:4096]


def _upgrad(products: Products) -> Floats:
    """Quinton and Rey 2024, arXiv:2406.16232: the mean of the gradients projected onto the cone of no conflict.

    The projection of ``g_i`` adds the non-negative combination of gradients that is shortest: its active set is sought.
    """
    m = len(products)
    total = np.zeros(m)
    for i in range(m):
        start = np.zeros(m)
        start[i] = 1.0
        best, least = start, math.inf
        for size in range(m + 1):
            for active in combinations(range(m), size):
                index = list(active)
                weights = start.copy()
                if index:
                    step = np.linalg.lstsq(products[np.ix_(index, index)], -products[index] @ start, rcond=None)[0]
                    if (step < -1e-9).any():
                        continue
                    weights[index] += step
                norm = float(weights @ products @ weights)
                if (products @ weights > -1e-9).all() and norm < least:
                    best, least = weights, norm
        total += best / m
    return total


def _mgda(products: Products) -> Floats:
    """Desideri 2012: the convex combination of smallest norm; which gradients take part is searched."""
    m = len(products)
    best: Floats = np.eye(m)[int(np.argmin(np.diag(products)))]
    least = float(np.diag(products).min())
    for size in range(2, m + 1):
        for active in combinations(range(m), size):
            index = list(active)
            system = np.block(
                [[products[np.ix_(index, index)], np.ones((size, 1))], [np.ones((1, size)), np.zeros((1, 1))]]
            )
            solution = np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0][:size]
            weights = np.zeros(m)
            weights[index] = solution
            norm = float(weights @ products @ weights)
            if (solution >= 0).all() and norm < least:
                best, least = weights, norm
    return best


def _aligned(products: Products) -> Floats:
    """Senushkin et al. 2023, arXiv:2305.19000: all singular values of the Jacobian as the smallest one."""
    values, vectors = np.linalg.eigh(products)
    nonzero = values > values.max() * len(products) * np.finfo(np.float64).eps
    mix = vectors[:, nonzero] @ np.diag(np.sqrt(values[nonzero].min() / values[nonzero])) @ vectors[:, nonzero].T
    weights: Floats = mix.mean(axis=1)
    return weights


def _nash(products: Products) -> Floats:
    """Navon et al. 2022, arXiv:2202.01017, eq. 3: ``G a = 1 / a``, G divided by its Frobenius norm as their code does.

    One coordinate after the other solves its own line, a quadratic, until none moves.
    """
    products = products / np.linalg.norm(products)
    weights = 1 / np.sqrt(np.diag(products))
    for _ in range(100_000):
        before = weights.copy()
        for i, square in enumerate(np.diag(products)):
            others = float(products[i] @ weights) - square * weights[i]
            weights[i] = (math.sqrt(others * others + 4 * square) - others) / (2 * square)
        if np.abs(weights - before).max() <= 1e-13 * weights.max():
            break
    return weights


def cosines(products: Products) -> Sequence[float]:
    """Return the cosines between the gradients of all pairs of tasks that have one."""
    norms = np.sqrt(np.maximum(np.diag(products), 0.0))
    pairs = combinations(range(len(products)), 2)
    return [float(products[i, j] / norms[i] / norms[j]) for i, j in pairs if norms[i] > 0 and norms[j] > 0]
