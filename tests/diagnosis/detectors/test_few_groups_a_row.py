"""Rows of a few groups: many of them dead, their gradients 0, and their spread only that of pairs."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from levelhead.diagnosis.detectors.base import View
from levelhead.diagnosis.detectors.setup import GroupSize
from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import Finding, diagnose

DEAD = "frac_reward_zero_std"


def history_of(rows: list[dict[str, float]]) -> History:
    history = History()
    for step, row in enumerate(rows, start=1):
        history.append(step, row)
    return history


def findings(rows: list[dict[str, float]]) -> dict[str, Finding]:
    return {finding.code: finding for finding in diagnose(history_of(rows)).findings}


def taken_for_pairs(rows: list[dict[str, float]]) -> bool:
    candidates = [case for case in GroupSize().examine(View(history_of(rows))) if case.code == "group-size-too-small"]
    return any(argument.key == "spread-of-pairs" for case in candidates for argument in case.evidence)


def rows_of_groups(size: int, groups: int, seed: int, steps: int = 40) -> list[dict[str, float]]:
    """Rewards of 0 and 1 as TRL logs them: the mean, and the mean of the groups' sample deviations, to four digits."""
    rng = random.Random(seed)
    rows = []
    for _ in range(steps):
        rate = [rng.choice([0.1, 0.4, 0.8]) for _ in range(groups)]
        drawn = [[float(rng.random() < p) for _ in range(size)] for p in rate]
        mean = statistics.mean(value for group in drawn for value in group)
        spread = statistics.mean(statistics.stdev(group) for group in drawn)
        rows.append({"reward": round(mean, 4), "reward_std": round(spread, 4)})
    return rows


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 8])
def test_pairs_are_told_by_their_spread(groups: int) -> None:
    for seed in range(10):
        assert taken_for_pairs(rows_of_groups(2, groups, seed)), seed


@pytest.mark.parametrize("size", [3, 4, 6, 8])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_larger_groups_are_never_taken_for_pairs(size: int, groups: int) -> None:
    for seed in range(20):
        assert not taken_for_pairs(rows_of_groups(size, groups, seed)), seed


def one_prompt_a_row(seed: int, entropy: float = 0.03, alive: float = 0.4) -> list[dict[str, float]]:
    rng = random.Random(seed)
    rows = []
    for _ in range(120):
        lives = rng.random() < alive
        reward = rng.uniform(0.3, 0.9) if lives else rng.choice([0.0, 1.0])
        gradient = rng.uniform(0.5, 4.0) if lives else 0.0
        level = entropy * rng.uniform(0.8, 1.2)
        rows.append({"reward": reward, DEAD: float(not lives), "grad_norm": gradient, "entropy": level, "loss": 0.0})
    return rows


def test_gradients_of_0_are_no_measure_of_the_others() -> None:
    for seed in range(10):
        assert "gradient-spike" not in findings(one_prompt_a_row(seed)), seed


def test_a_spike_among_gradients_of_0_is_one() -> None:
    rows = one_prompt_a_row(0)
    at = next(i for i in range(60, 120) if rows[i]["grad_norm"] > 0)
    rows[at]["grad_norm"] = 3e4
    spike = findings(rows)["gradient-spike"]
    assert spike.first_step == at + 1
    (by,) = (argument for argument in spike.evidence if argument.key == "gradient-spiked")
    assert 3e3 < float(by.numbers["factor"]) < 1e5


def test_entropy_that_was_always_low_is_no_collapse_while_groups_differ() -> None:
    assert sum("entropy-collapse" in findings(one_prompt_a_row(seed)) for seed in range(20)) <= 4
    collapsed = [{**row, DEAD: 1.0, "reward": 0.2, "grad_norm": 0.0} for row in one_prompt_a_row(0)]
    assert "entropy-collapse" in findings(collapsed)


def test_what_is_shown_of_dead_groups_is_what_the_log_holds() -> None:
    dead = findings([{"reward": 0.5, "reward_std": 0.0, "grad_norm": 0.1} for _ in range(6)])["reward-dead-groups"]
    assert {(reading.metric, reading.value) for reading in dead.readings} >= {("reward_std", 0.0)}
    assert ("reward_std", 1.0) not in {(reading.metric, reading.value) for reading in dead.readings}


def test_a_loss_that_is_0_for_good_after_it_was_not_is_a_standstill() -> None:
    rng = random.Random(5)
    rows = [{"loss": -0.03 if i < 2 else 0.0, "reward": rng.gauss(0, 0.3)} for i in range(20)]
    assert "deadlock" in findings(rows)
    assert "deadlock" not in findings([{**row, "loss": 0.0} for row in rows])
    assert "deadlock" not in findings([{**row, "loss": 1e-4 if i < 2 else 0.0} for i, row in enumerate(rows)])


def test_a_reward_that_comes_to_its_floor_by_usual_steps_is_no_failed_judge() -> None:
    rng = random.Random(4)
    levels = [-2.6, -2.9, -2.5, -2.8, -3.0, -2.9, -3.3, -3.3, -3.3, -3.3, -3.3, -2.9, -2.8, -2.4, -2.6]
    levels += [-2.3 + 0.05 * i + rng.gauss(0, 0.25) for i in range(40)]
    rows = [
        {
            "reward": level,
            DEAD: float(level == -3.3),
            "completions/mean_length": 300.0 + rng.gauss(0, 5),
            "entropy": 0.6,
        }
        for level in levels
    ]
    assert "judge-failure" not in findings(rows)
    fallen = [{**row, "reward": 0.0, DEAD: 1.0} if 30 <= i < 36 else row for i, row in enumerate(rows)]
    assert "judge-failure" in findings(fallen)


def test_torn_tokens_are_a_fault_however_well_the_reward_does() -> None:
    rng = random.Random(6)
    rows = [{"reward": 4.0 + 0.02 * i + rng.gauss(0, 0.1), "kl": 2.0 + rng.random()} for i in range(46)]
    assert "kl-blowup" not in findings([{**row, "kl": 0.1} for row in rows])
    for i in (10, 20, 30):
        rows[i]["kl"] = 3000.0
    assert findings(rows)["kl-blowup"].first_step == 11


def test_a_log_that_ends_in_numbers_that_are_none_is_of_a_run_that_ended_there() -> None:
    rng = random.Random(7)
    rows = [{"reward": 0.2 + 0.004 * i + rng.gauss(0, 0.02), "grad_norm": 1.0, "kl": 0.01} for i in range(100)]
    gone = {"grad_norm": math.nan, "kl": math.nan}
    assert findings([*rows, {**rows[-1], **gone}])["nonfinite"].severity == "warning"
    one_column, in_the_middle = [*rows, {**rows[-1], "grad_norm": math.nan}], [*rows[:50], {**rows[50], **gone}, *rows]
    for harmless in (one_column, in_the_middle):
        finding = findings(harmless).get("nonfinite")
        assert finding is None or finding.severity == "info"
