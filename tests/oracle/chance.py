"""Tests whose verdicts hold whatever the sample size, and the chance of a false alarm that all of them share.

A test by an e-value (see :func:`levelhead.training.batch_report.count_log_e`) needs no large sample;
likelihood ratios are e-values, and so are their means.
"""

from __future__ import annotations

import math

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


def matches_p(matches: int) -> float:
    """Return a bound on the chance that so many of n things meet their partner in a random pairing: 1 / matches!.

    The expected number of k-sets that all meet their partner is at most C(n, k) (n - k)! / n! = 1 / k!, whatever the
    partners are, and no fewer k-sets meet than one where k do.
    """
    return 1.0 / math.factorial(min(matches, 150))


def spread_p(different: int, throws: int, n: int) -> float:
    """Return the chance that throws into n boxes hit at least ``different`` boxes, every box being as likely."""
    chance = [1.0] + [0.0] * n
    for _ in range(throws):
        chance = [
            (chance[k] * k / n if k else 0.0) + (chance[k - 1] * (n - k + 1) / n if k else 0.0) for k in range(n + 1)
        ]
    return min(1.0, math.fsum(chance[different:]))
