"""Before the first step a judge is tried on answers of known worth."""

from __future__ import annotations

import pytest

from judged_preflight import Verdict, setup_with, sound
from levelhead.preflight import Check, preflight
from levelhead.preflight.judges import ASKED
from levelhead.tasks.judges import JudgedTask


def checks_of(verdict: Verdict, status: int = 200) -> dict[str, Check]:
    return {check.name: check for check in preflight(setup_with(verdict, status)[0], families=("judges",)).checks}


def test_a_judge_that_grades_and_ranks_passes_at_the_cost_of_nine_calls() -> None:
    setup, shown = setup_with(sound)
    report = preflight(setup, families=("judges",))
    assert [(check.name, check.status) for check in report.checks] == [
        ("judges/grades/fairness", "pass"),
        ("judges/order/fairness", "pass"),
    ]
    assert len(shown) == 3 * ASKED


@pytest.mark.parametrize(
    "verdict",
    [lambda perfect, answer: "I like it.", lambda perfect, answer: "Grade: 11" if answer else "Grade: 0"],
)
def test_a_judge_without_grades_fails(verdict: Verdict) -> None:
    check = checks_of(verdict)["judges/grades/fairness"]
    assert check.status == "fail"
    assert "hold no grade" in check.message
    assert check.evidence["last_without_grade"]


@pytest.mark.parametrize(
    ("verdict", "named"),
    [
        (lambda perfect, answer: "Grade: 10", "empty and wrong"),
        (lambda perfect, answer: f"Grade: {6 if answer else 2}", "wrong"),
        (lambda perfect, answer: f"Grade: {1 if answer == perfect else 8}", "empty and wrong"),
    ],
)
def test_a_judge_that_does_not_rank_fails(verdict: Verdict, named: str) -> None:
    check = checks_of(verdict)["judges/order/fairness"]
    assert check.status == "fail"
    assert f"above {named} ones" in check.message


def test_a_grade_missing_now_and_then_is_a_warning() -> None:
    replies = iter([True] + [False] * 99)
    found = checks_of(lambda perfect, answer: "hm" if next(replies) else sound(perfect, answer))
    assert found["judges/grades/fairness"].status == "warn"
    assert found["judges/order/fairness"].status == "pass"


def test_a_refused_key_fails_with_advice_on_the_key_and_is_asked_no_more() -> None:
    setup, shown = setup_with(sound, status=401)
    report = preflight(setup, families=("judges", "rewards"))
    (failure,) = report.failures
    assert (failure.name, failure.evidence) == ("judges/answers/fairness", {"cause": "authentication"})
    assert "api_key_env" in failure.fix
    assert len(shown) <= 3 * ASKED
    assert isinstance(setup.tasks["fairness"], JudgedTask)
    assert setup.tasks["fairness"].asks


def test_an_endpoint_that_is_down_fails_with_advice_on_the_endpoint() -> None:
    check = checks_of(sound, status=503)["judges/answers/fairness"]
    assert (check.status, check.evidence) == ("fail", {"cause": "outage"})
    assert "start the endpoint at http://judge.test/v1" in check.fix
