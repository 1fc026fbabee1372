"""Repeats are counted against what the draws themselves make likely."""

from __future__ import annotations

import math

import numpy as np
import pytest

from levelhead.records import Group, Prompt, Rollout, Turn
from levelhead.training.batch_report import count_log_e, repeat_metrics, repeats
from levelhead.training.fit import Fit, heart_event


def turn(token: int, p: float) -> Turn:
    return Turn((1, 2), (token,), (math.log(p),), (math.log(p),), "stop")


def group(name: str, *turns: Turn) -> Group:
    return Group(Prompt(name, "task", ()), tuple(Rollout(name, (one,)) for one in turns))


def test_chance_is_the_probability_of_what_was_drawn_before() -> None:
    assert repeats([turn(1, 0.5), turn(1, 0.5), turn(2, 0.25), turn(3, 0.1)]) == (1, pytest.approx(0.5 + 0.5 + 0.75))


def test_equal_rollouts_of_a_peaked_policy_are_no_evidence() -> None:
    values = repeat_metrics([group(str(i), *[turn(7, 0.99)] * 8) for i in range(8)])
    assert values["sampling/repeats"] == 1.0
    assert values["sampling/repeats_expected"] == pytest.approx(0.99)
    assert values["sampling/repeats_evidence"] < 3


def test_equal_rollouts_of_an_open_policy_are_evidence() -> None:
    values = repeat_metrics([group(str(i), *[turn(i, 1e-6)] * 8) for i in range(8)])
    assert values["sampling/repeats_evidence"] > 100


def test_groups_of_one_prompt_that_hold_the_same_draws_are_evidence() -> None:
    one = [turn(i, 1e-4) for i in range(8)]
    assert repeat_metrics([group("a", *one), group("a", *one)])["sampling/repeats_evidence"] > 40
    assert repeat_metrics([group("a", *one), group("b", *one)])["sampling/repeats_evidence"] < 1


def test_draws_of_their_own_pass_the_bound_no_more_often_than_it_says() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(12, 0.5))
    evidence = []
    for _ in range(500):
        drawn = [[turn(int(t), float(p[t])) for t in rng.choice(12, size=8, p=p)] for _ in range(4)]
        evidence.append(repeat_metrics([group(str(i), *turns) for i, turns in enumerate(drawn)]))
    assert np.mean([math.exp(min(v["sampling/repeats_evidence"], 50.0)) for v in evidence]) < 1.5
    assert np.mean([v["sampling/repeats_evidence"] > math.log(20) for v in evidence]) <= 0.05


def test_no_repeats_at_all_is_evidence_too() -> None:
    assert count_log_e(0, 60.0) > 40


def test_demonstrations_learnt_by_heart_are_told() -> None:
    fits, not_at_all = Fit(0.5, 0.1, 0.001), Fit(0.1, 0.1, 0.4)
    event = heart_event("math", fits, not_at_all, 40)
    assert event is not None
    assert event.severity == "warning"
    assert "p = 0.4" in event.message
    assert heart_event("math", fits, fits, 40) is None
    assert heart_event("math", not_at_all, not_at_all, 40) is None
