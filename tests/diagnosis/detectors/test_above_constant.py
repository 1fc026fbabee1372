"""Runs of ours whose held-out score is no better than the best constant answer's."""

from __future__ import annotations

import pytest

from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import diagnose
from levelhead.diagnosis.verdict import compare


def verdict(steps: int, above: float, score: float = 0.3) -> str:
    """The verdict on a run whose training reward rises, and whose last evaluation stands ``above`` the constant."""
    return diagnose(run(steps, above, score)).verdict


def codes(steps: int, above: float, score: float = 0.3) -> list[str]:
    """Its findings."""
    findings = diagnose(run(steps, above, score)).findings
    return [finding.code for finding in findings if finding.severity != "info"]


def run(steps: int, above: float, score: float) -> History:
    history = History()
    for step in range(steps + 1):
        row = {"reward": 0.3 * step / steps, "reward_std": 0.3, "entropy": 0.4, "grad_norm": 0.5} if step else {}
        if step in (0, steps):
            row |= {"eval/qa/score": score, "eval/qa/se": 0.03, "eval/qa/over_constant": above}
        history.append(step, row)
    return history


@pytest.mark.parametrize("above", [-0.2, 0.0, 0.01])
def test_a_run_that_ends_no_better_than_a_constant_answer_is_not_healthy_though_its_reward_rises(above: float) -> None:
    assert codes(40, above) == ["no-improvement"]


def test_a_run_that_ends_above_the_constant_answer_is_not_accused() -> None:
    assert codes(40, 0.2) == []
    assert verdict(40, 0.2) in ("healthy", "learns")


def test_one_that_the_standard_error_does_not_tell_from_it_is_undecided_as_for_the_verdict_of_a_run() -> None:
    assert compare(0.03, 0.03, None) == "undecided"
    assert codes(40, 0.03) == []
    assert verdict(40, 0.03) == "undecided"


def test_a_run_of_a_few_steps_may_still_be_below_it() -> None:
    assert codes(10, -0.2) == []


def test_a_score_that_leaves_nothing_to_be_above_is_no_fault() -> None:
    assert codes(40, 0.0, score=0.97) == []
