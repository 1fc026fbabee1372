"""A judge that gives no grades is named by the doctor, and what ended a run decides the advice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import watch_scenarios as scenarios
from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import Diagnosis, diagnose
from levelhead.doctor.report import examine

STEPS = 30


def learning(**columns: float) -> list[dict[str, float]]:
    """A run whose rewards look well, with more columns."""
    return [{**row, **columns} for row in scenarios.rows(scenarios.HEALTHY["learning"], 0, STEPS)]


def diagnosed(rows: list[dict[str, float]], *events: dict[str, Any]) -> Diagnosis:
    history = History()
    for step, row in enumerate(rows, 1):
        history.append(step, row)
    return diagnose(history, events=events)


def without_grade(step: int, asked: int, failed: int) -> dict[str, Any]:
    evidence = {"asked": asked, "failed": failed, "cause": "no-grade"}
    severity = "critical" if 2 * failed > asked else "warning"
    return {"step": step, "code": "judge-failure", "severity": severity, "message": "", "evidence": evidence}


def test_metrics_alone_tell_of_a_judge_without_grades() -> None:
    found = diagnosed(learning(**{"judge/verdicts": 12.0, "judge/failures": 12.0}))
    assert (found.verdict, found.findings[0].code, found.findings[0].first_step) == ("critical", "judge-failure", 1)


def test_events_alone_tell_of_a_judge_without_grades() -> None:
    found = diagnosed(learning(), *[without_grade(step, 12, 9) for step in range(4, 9)])
    assert (found.verdict, found.findings[0].code, found.findings[0].first_step) == ("critical", "judge-failure", 4)


def test_one_bad_step_is_enough_and_is_counted_once() -> None:
    rows = learning(**{"judge/verdicts": 40.0, "judge/failures": 0.0})
    rows[6]["judge/failures"] = 30.0
    found = diagnosed(rows, without_grade(7, 40, 30))
    assert found.findings[0].code == "judge-failure"
    (argument,) = found.findings[0].evidence
    assert argument.numbers == {"steps": 1, "asked": 40.0, "failed": 30.0}


def test_verdicts_missing_now_and_then_are_no_failure() -> None:
    rows = learning(**{"judge/verdicts": 12.0, "judge/failures": 5.0})
    found = diagnosed(rows, *[without_grade(step, 12, 5) for step in range(STEPS)])
    assert not found.faulty


@pytest.mark.parametrize(
    ("cause", "key"),
    [
        ("authentication", "tasks[].judge.api_key_env"),
        ("budget", "tasks[].judge.max_calls"),
        ("outage", "tasks[].judge.patience_s"),
    ],
)
def test_what_ended_the_run_decides_the_advice(tmp_path: Path, cause: str, key: str) -> None:
    lines = [{"step": step, "stage": "grpo", **row} for step, row in enumerate(learning(), 1)]
    evidence = {"stage": "grpo", "error": "EndpointError", "cause": cause}
    stop = {"step": STEPS, "code": "rewards", "severity": "critical", "message": "x", "action": "stop"}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (tmp_path / "events.jsonl").write_text(json.dumps({**stop, "evidence": evidence}) + "\n", encoding="utf-8")
    report = examine(tmp_path)
    assert report.diagnosis.verdict == "critical"
    settings = {name for remedy in report.remedies(report.diagnosis.findings[0]) for name in remedy["set"]}
    assert key in settings
    assert ("tasks[].judge.api_key_env" in settings) == (cause == "authentication")
