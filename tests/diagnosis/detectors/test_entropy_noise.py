"""A policy that dissolves into noise is called so, though lucky answers lift its reward off the floor."""

from __future__ import annotations

import random

import pytest

from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import Diagnosis, diagnose

ROWS = 46


def rows(seed: int, reward: float, entropy: tuple[float, float], name: str = "entropy") -> list[dict[str, float]]:
    """A run whose groups are nearly all without contrast; what needs a forward pass stands in 17 rows of 46."""
    rng = random.Random(seed)
    run = []
    for step in range(ROWS):
        share = step / (ROWS - 1)
        alive = rng.random() < 17 / ROWS or step in (0, ROWS - 1)
        level = entropy[0] + (entropy[1] - entropy[0]) * share + rng.gauss(0, 0.15)
        row = {
            "reward": max(0.0, min(reward, rng.gauss(reward * share, reward / 3))) if alive else 0.0,
            "frac_reward_zero_std": rng.choice([0.75, 0.875]) if alive else 1.0,
            "grad_norm": rng.uniform(0.2, 0.8) if alive else 0.0,
        }
        if alive or name != "entropy":
            row[name] = level
        run.append(row)
    return run


def judged(run: list[dict[str, float]]) -> Diagnosis:
    history = History()
    for step, row in enumerate(run, start=1):
        history.append(step, row)
    return diagnose(history)


@pytest.mark.parametrize("name", ["entropy", "sampling/entropy"])
def test_noise_is_named_though_the_reward_has_left_the_floor(name: str) -> None:
    for seed in range(6):
        diagnosis = judged(rows(seed, 0.06, (2.2, 4.8), name))
        assert diagnosis.verdict == "critical"
        assert diagnosis.findings[0].code == "entropy-explosion", seed


def test_the_sampled_entropy_stands_in_where_most_steps_make_no_forward_pass() -> None:
    run = rows(1, 0.06, (2.2, 4.8), "sampling/entropy")
    for step in (0, 20, ROWS - 1):
        run[step]["entropy"] = 2.2
    shown = {reading.metric for reading in judged(run).findings[0].readings}
    assert "sampling/entropy" in shown


def test_the_entropy_of_the_forward_pass_is_believed_where_it_is_nearly_complete() -> None:
    run = rows(1, 0.06, (2.2, 4.8), "sampling/entropy")
    for row in run[4:]:
        row["entropy"] = 2.2
    assert "entropy-explosion" not in {f.code for f in judged(run).findings if f.severity != "info"}


def test_a_policy_that_explores_and_earns_is_no_noise() -> None:
    rng = random.Random(3)
    run = [
        {
            "reward": min(1.0, max(0.0, 0.1 + 0.6 * step / ROWS + rng.gauss(0, 0.05))),
            "entropy": 2.0 + 2.0 * step / ROWS,
            "frac_reward_zero_std": 0.1,
        }
        for step in range(ROWS)
    ]
    assert not judged(run).faulty


def test_a_falling_reward_is_not_laid_to_an_entropy_that_has_hardly_moved() -> None:
    run = [{"reward": 0.75 - 0.1 * step, "entropy": 0.45 + 0.043 * step} for step in range(7)]
    assert "entropy-explosion" not in {f.code for f in judged(run).findings if f.severity != "info"}
