"""A gradient is as large as the rewards that advantages are not divided by: large alone is no spike."""

from __future__ import annotations

import random

from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import Diagnosis, diagnose


def judged(norm: float, spread: float, rows: int = 8, last: float = 1.0) -> Diagnosis:
    """Rewards that are penalties, and norms about ``norm``; the last one ``last`` times as large."""
    rng = random.Random(4)
    history = History()
    for step in range(1, rows + 1):
        values = {
            "reward": -spread + rng.gauss(0, 0.2 * spread),
            "reward_std": spread * rng.lognormvariate(0, 0.3),
            "grad_norm": norm * rng.lognormvariate(0, 0.5) * (last if step == rows else 1.0),
            "entropy": 0.7,
        }
        history.append(step, values)
    return diagnose(history)


def codes(diagnosis: Diagnosis) -> set[str]:
    return {finding.code for finding in diagnosis.findings if finding.severity != "info"}


def test_gradients_of_penalties_in_thousands_are_no_spike() -> None:
    assert not judged(norm=8e4, spread=1e4).faulty


def test_the_same_gradients_of_small_rewards_are() -> None:
    assert "gradient-spike" in codes(judged(norm=8e4, spread=0.4))


def test_a_large_spread_excuses_no_norm_far_beyond_it() -> None:
    assert "gradient-spike" in codes(judged(norm=1e10, spread=1e4))


def test_an_explosion_is_named_where_most_gradients_are_small_whatever_the_spread() -> None:
    assert "gradient-spike" in codes(judged(norm=1.0, spread=1e4, last=1e5))
