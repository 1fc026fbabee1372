"""Rewards that fail on more than half of a task's answers are named by the doctor, by metrics and by events."""

from __future__ import annotations

from typing import Any

import pytest

import watch_scenarios as scenarios
from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import Diagnosis, diagnose

STEPS = 30


def diagnosed(shares: dict[int, float], *events: dict[str, Any], name: str = "frac_reward_errors") -> Diagnosis:
    """A run whose rewards look well, with the share of dropped answers at some steps and 0 at the others."""
    history = History()
    for step, row in enumerate(scenarios.rows(scenarios.HEALTHY["learning"], 0, STEPS), 1):
        history.append(step, {**row, name: shares.get(step, 0.0)} if shares else row)
    return diagnose(history, events=events)


def event(step: Any, answers: Any, dropped: Any) -> dict[str, Any]:
    evidence = {"task": "mine", "answers": answers, "dropped": dropped, "cause": "reward-function"}
    return {"step": step, "code": "reward-errors", "severity": "critical", "message": "", "evidence": evidence}


@pytest.mark.parametrize("name", ["frac_reward_errors", "frac_reward_errors/mine"])
def test_one_step_that_lost_most_of_its_answers_is_enough(name: str) -> None:
    found = diagnosed({7: 0.75, 9: 1.0}, name=name)
    first = found.findings[0]
    assert (found.verdict, first.code, first.first_step) == ("critical", "reward-errors", 7)
    assert first.evidence[0].numbers == {"steps": 2, "share": 1.0}


def test_events_alone_are_enough() -> None:
    found = diagnosed({}, event(4, 12, 9), event(0, 12, 2))
    assert (found.verdict, found.findings[0].code, found.findings[0].first_step) == ("critical", "reward-errors", 4)


def test_some_answers_dropped_are_what_the_setting_is_for() -> None:
    assert not diagnosed({7: 0.5, 9: 0.1}, event(7, 12, 6)).faulty


@pytest.mark.parametrize(
    "odd", [event("x", 1, 1), event(3, "1", "1"), event(3, None, 1), event(3, 0, 0), event(3, -1, -5), event(3, 1, 9)]
)
def test_malformed_events_say_nothing(odd: dict[str, Any]) -> None:
    assert not diagnosed({}, odd, {"code": "reward-errors", "evidence": 7}).faulty
