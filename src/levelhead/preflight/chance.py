"""Tests whose verdicts hold whatever the sample size, and the chance of a false alarm that all of them share.

A test by an e-value (:mod:`levelhead.training.repeats`) needs no large sample; likelihood ratios are e-values, and so
are their means.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FALSE_ALARM = 1e-4
"""Probability that any check of a sound preflight fails or warns by chance, at most."""
TESTS = 10
"""Checks that share it: those that judge something random."""
LEVEL = FALSE_ALARM / TESTS
"""Probability that one of them does; where a check looks at several tasks, they share it in turn."""


def p_value(log_e: float) -> float:
    """Return the p-value that an e-value, given by its logarithm, vouches for: 1 / e, at most 1."""
    return min(1.0, math.exp(-min(log_e, 700.0)))


def sign_p(above: int, below: int) -> float:
    """Return the exact p-value of a sign test: the chance of so many ``above`` where either side is as likely."""
    n = above + below
    return min(1.0, math.fsum(math.comb(n, k) for k in range(above, n + 1)) / 2.0**n) if n else 1.0


def binomial_p(seen: int, n: int, share: float) -> float:
    """Return the exact two-sided p-value of ``seen`` of n draws with probability ``share``: twice the smaller tail."""
    if share <= 0 or share >= 1:
        return float(seen == round(n * share))
    logs = [
        math.lgamma(n + 1)
        - math.lgamma(k + 1)
        - math.lgamma(n - k + 1)
        + k * math.log(share)
        + (n - k) * math.log1p(-share)
        for k in range(n + 1)
    ]
    low = math.fsum(math.exp(v) for v in logs[: seen + 1])
    high = math.fsum(math.exp(v) for v in logs[seen:])
    return min(1.0, 2 * min(low, high))


class Fit(NamedTuple):
    """How well columns fit the rows that they are paired with.

    Attributes:
        own: Mean of the paired entries.
        others: Mean of all others.
        p: p-value of the own mean against random pairings: 1 where the pairing says nothing.
        worse: p-value against it being as low as it is.
    """

    own: float
    others: float
    p: float
    worse: float


def permutation_fit(fit_nn: Floats, rng: np.random.Generator, tries: int = 999) -> Fit:
    """Return whether entries (i, i) of a square matrix are higher than random pairings would be.

    A Monte Carlo permutation test of the trace (Phipson and Smyth 2010: p = (1 + b) / (1 + m)).

    Args:
        fit_nn: How well column j fits row i, shape (n, n).
        rng: Draws the permutations.
        tries: Permutations; p cannot be less than 1 / (1 + tries).
    """
    n = len(fit_nn)
    own = float(np.trace(fit_nn)) / max(n, 1)
    others = float(fit_nn.sum() - np.trace(fit_nn)) / max(n * (n - 1), 1)
    if n < 2:
        return Fit(own, others, 1.0, 1.0)
    high = low = 0
    for done in range(0, tries, 20_000):
        order_mn = np.argsort(rng.random((min(tries - done, 20_000), n)), axis=1)
        means_m = fit_nn[np.arange(n), order_mn].mean(axis=1)
        high += int((means_m >= own - 1e-12).sum())
        low += int((means_m <= own + 1e-12).sum())
    return Fit(own, others, (1 + high) / (1 + tries), (1 + low) / (1 + tries))


def matches_p(matches: int) -> float:
    """Return a bound on the chance that so many of n things meet their partner in a random pairing: 1 / matches!.

    The expected number of k-sets that all meet their partner is at most C(n, k) (n - k)! / n! = 1 / k!, whatever the
    partners are, and no fewer k-sets meet than one where k do.
    """
    return 1.0 / math.factorial(min(matches, 150))


def spread_p(different: int, n: int) -> float:
    """Return the chance that n throws into n boxes hit at least ``different`` boxes, every box being as likely."""
    chance = [1.0] + [0.0] * n
    for _ in range(n):
        chance = [
            (chance[k] * k / n if k else 0.0) + (chance[k - 1] * (n - k + 1) / n if k else 0.0) for k in range(n + 1)
        ]
    return min(1.0, math.fsum(chance[different:]))
