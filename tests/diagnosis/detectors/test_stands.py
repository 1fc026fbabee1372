"""Outcomes are held against the reward: what stands still, stays at its floor or falls while the reward rises."""

from __future__ import annotations

import random

from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import Diagnosis, diagnose
from levelhead.doctor.report import examine_rows


def diagnosed(rows: list[dict[str, float]]) -> Diagnosis:
    history = History()
    for i, row in enumerate(rows):
        history.append(i + 1, row)
    return diagnose(history)


def rising(i: int, n: int, rng: random.Random) -> float:
    return 0.2 + 0.7 * i / n + rng.uniform(-0.03, 0.03)


def test_an_outcome_at_its_floor_under_a_rising_form_reward_is_hacking() -> None:
    rng = random.Random(1)
    rows = []
    for i in range(80):
        form = rising(i, 80, rng)
        rows.append({"reward": form, "reward_std": 0.2, "rewards/format/mean": form, "rewards/correctness/mean": 0.0})
    assert diagnosed(rows).findings[0].code == "reward-hacking"


def test_a_form_that_is_learnt_first_is_no_hacking_yet_and_never_ends_a_run() -> None:
    rng = random.Random(5)
    rows = []
    for i in range(120):
        form = min(0.9, rising(i, 40, rng))
        rows.append({"reward": form, "reward_std": 0.2, "rewards/format/mean": form, "rewards/correctness/mean": 0.0})
    assert not diagnosed(rows[:20]).faulty
    assert diagnosed(rows).verdict == "warning"


def test_an_outcome_that_stands_still_under_a_rising_form_reward_is_hacking() -> None:
    rng = random.Random(2)
    rows = []
    for i in range(60):
        form, right = rising(i, 60, rng), 0.4 + rng.uniform(-0.02, 0.02)
        rows.append(
            {"reward": form + right, "reward_std": 0.2, "rewards/format/mean": form, "rewards/accuracy/mean": right}
        )
    assert diagnosed(rows).findings[0].code == "reward-hacking"


def test_an_outcome_that_rises_too_is_none() -> None:
    rng = random.Random(3)
    rows = []
    for i in range(60):
        form, right = rising(i, 60, rng), rising(i, 80, rng)
        rows.append(
            {"reward": form + right, "reward_std": 0.2, "rewards/format/mean": form, "rewards/accuracy/mean": right}
        )
    assert not diagnosed(rows).faulty


def test_a_held_out_score_that_falls_needs_no_reward_beside_it() -> None:
    falling = [28.9, 27.2, 26.7, 25.0, 23.5, 22.3]
    assert (
        diagnosed([{"eval/minerva": score, "eval/score": score} for score in falling]).findings[0].code
        == "no-improvement"
    )
    rising_scores = falling[::-1]
    assert not diagnosed([{"eval/score": score} for score in rising_scores]).faulty


def test_a_first_and_a_last_held_out_score_are_enough() -> None:
    assert diagnosed([{"eval/score": 0.334}, {"eval/score": 0.297}]).findings[0].code == "no-improvement"
    assert diagnosed([{"eval/score": 0.334}, {"eval/score": 0.338}]).verdict == "undecided"


def test_a_kind_of_items_that_falls_while_its_task_rises_does_not_make_a_run_one_without_improvement() -> None:
    def evaluated(qa: float, all_items: float) -> dict[str, float]:
        kind = {"eval/flow/domain=qa/score": qa, "eval/flow/domain=qa/se": 0.02}
        return {**kind, "eval/flow/score": all_items, "eval/flow/se": 0.04}

    assert not diagnosed([evaluated(0.79, 0.39), evaluated(0.67, 0.73)]).faulty
    assert diagnosed([evaluated(0.79, 0.73), evaluated(0.67, 0.72)]).findings[0].code == "no-improvement"


def test_evaluations_that_no_longer_change_are_of_one_answer_to_everything() -> None:
    rng = random.Random(4)
    rows = [{"reward": rng.uniform(-0.5, 0.2), "eval/accuracy": 0.4, "eval/false_refuse_rate": 0.6}]
    rows += [
        {"reward": rng.uniform(-0.5, 0.2), "eval/accuracy": 0.55, "eval/false_refuse_rate": 0.8} for _ in range(12)
    ]
    assert diagnosed(rows).findings[0].code == "constant-answer"


def test_a_run_that_training_made_worse_is_not_advised_to_take_larger_steps() -> None:
    report = examine_rows([{"eval/score": 0.334, "learning_rate": 1e-6}, {"eval/score": 0.297, "learning_rate": 1e-6}])
    settings = {key for remedy in report.remedies(report.diagnosis.findings[0]) for key in remedy["set"]}
    assert settings
    assert "grpo.optimizer.learning_rate" not in settings


def test_the_first_advice_on_a_deadlock_is_other_tasks_and_the_rate_comes_last() -> None:
    rows = [{"reward": 0.5, "reward_std": 0.4, "loss": 0.1, "grad_norm": 1.0, "entropy": 1.0} for _ in range(6)]
    rows += [{"reward": 1.0, "reward_std": 0.0, "loss": 0.0, "grad_norm": 0.0, "entropy": 0.001} for _ in range(30)]
    report = examine_rows(rows)
    assert report.diagnosis.findings[0].code == "deadlock"
    first, second, third = [next(iter(r["set"])) for r in report.remedies(report.diagnosis.findings[0])[:3]]
    assert (first, second, third) == ("tasks", "grpo.dynamic_sampling", "grpo.optimizer.learning_rate")


def test_scores_that_are_never_numbers_are_no_argument() -> None:
    rows = [{"reward": 0.5, "reward_std": 0.2, "eval/task/score": float("nan")} for _ in range(12)]
    assert "constant-answer" not in [finding.code for finding in diagnosed(rows).findings]
