"""A run without a fault is healthy only where its rows can show it."""

from __future__ import annotations

import random

from levelhead.diagnosis.detectors import View
from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import Diagnosis, diagnose, without_fault


def diagnosed(rows: list[dict[str, float]]) -> Diagnosis:
    history = History()
    for i, row in enumerate(rows):
        history.append(i + 1, row)
    return diagnose(history)


def climbing(n: int, **more: float) -> list[dict[str, float]]:
    rng = random.Random(1)
    return [
        {"reward": 0.2 + 0.5 * i / n + rng.uniform(-0.02, 0.02), "reward_std": 0.3, "grad_norm": 0.4, **more}
        for i in range(n)
    ]


def why(diagnosis: Diagnosis) -> set[str]:
    return {argument.key for argument in diagnosis.findings[0].evidence}


def test_a_reward_that_climbs_is_healthy_and_more_surely_so_over_many_rows() -> None:
    short, long = diagnosed(climbing(10)), diagnosed(climbing(80))
    assert short.verdict == long.verdict == "healthy"
    assert short.findings[0].confidence < long.findings[0].confidence < 1


def test_fewer_than_eight_rows_are_undecided() -> None:
    for n in range(1, 8):
        assert diagnosed(climbing(n)).verdict == "undecided"
    assert diagnosed(climbing(8)).verdict == "healthy"


def test_a_high_reward_that_goes_down_is_undecided() -> None:
    falling = [0.88, 0.75, 0.63, 0.84, 0.69, 0.75, 0.56, 0.59]
    assert diagnosed([{"reward": value} for value in falling]).verdict == "undecided"
    assert diagnosed([{"reward": value} for value in reversed(falling)]).verdict == "healthy"


def test_nine_in_ten_is_not_claimed_of_a_sound_run_nor_of_a_finding_after_the_first() -> None:
    sure = [diagnosed(climbing(400)), diagnosed(dead_and_cut())]
    assert sure[0].verdict == "healthy"
    assert sure[1].findings[0].confidence > 0.9
    assert len(sure[1].findings) > 1
    assert all(f.confidence < 0.9 for f in (sure[0].findings[0], *sure[1].findings[1:]))


def dead_and_cut() -> list[dict[str, float]]:
    row = {"reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0, "grad_norm": 0.0, "loss": 0.0}
    return [{**row, "completions/clipped_ratio": 1.0, "completions/mean_length": 256.0}] * 40


def test_no_number_of_rows_without_an_outcome_is_healthy() -> None:
    diagnosis = diagnosed([{"loss": 0.1, "grad_norm": 0.4, "entropy": 0.8} for _ in range(200)])
    assert diagnosis.verdict == "undecided"
    assert why(diagnosis) == {"no-outcome"}


def test_a_reward_that_has_not_moved_yet_is_undecided() -> None:
    rng = random.Random(2)
    noise = [{"reward": 0.3 + rng.uniform(-0.1, 0.1), "reward_std": 0.3} for _ in range(20)]
    diagnosis = diagnosed(noise)
    assert diagnosis.verdict == "undecided"
    assert why(diagnosis) == {"no-rise-yet"}


def test_a_rise_that_uses_something_up_says_what_it_costs() -> None:
    rows = climbing(60)
    for i, row in enumerate(rows):
        row["frac_reward_zero_std"] = min(0.8, i / 60)
        row["entropy"] = 1.2 - i / 60
        row["completions/clipped_ratio"] = i / 120
    diagnosis = diagnosed(rows)
    assert diagnosis.verdict == "learns"
    assert {"costs-contrast", "costs-entropy", "costs-cut"} <= why(diagnosis)


def test_a_rise_of_answers_that_are_nearly_all_cut_is_not_called_healthy() -> None:
    diagnosis = diagnosed([row | {"completions/clipped_ratio": 0.97} for row in climbing(60)])
    assert diagnosis.verdict == "learns"
    assert "costs-cut" in why(diagnosis)


def test_no_undecided_run_is_called_sure() -> None:
    assert diagnosed(climbing(3)).findings[0].confidence == 0.5


def test_a_gain_of_hardly_anything_on_a_low_reward_is_no_health() -> None:
    rng = random.Random(3)
    rows = [{"reward": 0.040 + 0.0001 * i + rng.uniform(-0.003, 0.003), "reward_std": 0.1} for i in range(120)]
    diagnosis = diagnosed(rows)
    assert diagnosis.verdict != "healthy"
    if diagnosis.verdict == "undecided":
        assert why(diagnosis) == {"hardly-risen"}


def test_a_doubt_that_is_nearly_even_leaves_the_verdict_open() -> None:
    view = View(History())
    for i, row in enumerate(climbing(40)):
        view.history.append(i + 1, row)
    assert without_fault(view, 0.3).code == "healthy"
    assert without_fault(view, 0.48).code == "undecided"
    assert {argument.key for argument in without_fault(view, 0.48).evidence} == {"doubt-stands"}
