"""Tests whose verdicts hold whatever the sample size, and the chance of a false alarm that all of them share.

A test by an e-value (see :func:`levelhead.training.batch_report.count_log_e`) needs no large sample;
likelihood ratios are e-values, and so are their means.
"""

from __future__ import annotations

import math


def p_value(log_e: float) -> float:
    """Return the p-value that an e-value, given by its logarithm, vouches for: 1 / e, at most 1."""
    return min(1.0, math.exp(-min(log_e, 700.0)))


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
