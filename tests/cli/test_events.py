"""One diagnosis: the guard while it watches, the block at a run's end, the report and the doctor say the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import watch_scenarios as scenarios
from levelhead.cli.events import show_events
from levelhead.diagnosis.findings import CATALOGUE
from levelhead.diagnosis.remedies import settings_text
from levelhead.doctor.render import finding_line
from levelhead.doctor.report import examine
from levelhead.guard import LiveGuard
from levelhead.recipe.guard import Guard as Bounds
from levelhead.records import Event, StepRecord
from levelhead.report.outlook import next_steps
from levelhead.report.reading import read_run
from levelhead.training.eventlog import EventLog
from levelhead.training.rundir import RunDir

STEPS = 90
SCENARIOS = {**scenarios.HEALTHY, **{name: scenario for name, (scenario, _) in scenarios.UNHEALTHY.items()}}


def write_run(folder: Path, rows: list[dict[str, float]]) -> tuple[Path, list[Event]]:
    """Write a run folder as the trainer does, a guard that only observes watching; returns it and all events."""
    run = RunDir(folder)
    log, guard = EventLog(run, loud=False), LiveGuard(Bounds(policy="observe"))
    told: list[Event] = []
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text("name: one\n", encoding="utf-8")
    for step, values in enumerate(rows, 1):
        record = StepRecord(step, "grpo", values)
        run.append("metrics.jsonl", [record])
        news = [decision.event for decision in guard.after_update(record)]
        log.write(news)
        told += news
    return folder, told


def looks(events: list[Event]) -> dict[str, Event]:
    """What the guard's looks hold in the end: the newest word on each code that it has not taken back."""
    newest = {event.code: event for event in events if "first_step" in event.evidence or event.severity == "info"}
    return {code: event for code, event in newest.items() if event.severity != "info"}


@pytest.mark.parametrize("name", SCENARIOS)
def test_guard_block_report_and_doctor_name_the_same_findings_and_the_same_first_remedy(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, told = write_run(tmp_path / "run", scenarios.rows(SCENARIOS[name], 0, STEPS))
    report = examine(folder)
    leading = report.diagnosis.leading
    show_events(folder / "events.jsonl")
    lines = capsys.readouterr().err.splitlines()
    assert [line.strip() for line in lines[2 : 2 + len(leading)]] == [finding_line(f, report) for f in leading]
    steps = [step.text for step in next_steps(read_run(folder))]
    for finding in leading[: len(steps)]:
        if report.remedies(finding):
            assert any(CATALOGUE[finding.code].title.get() in text for text in steps), (finding.code, steps)
    # What a look said and the whole curve does not show is named as passed, without a remedy of its own.
    standing = {finding.code for finding in report.diagnosis.findings if finding.severity != "info"}
    passed = set(looks(told)) - standing
    block = "\n".join(lines)
    assert bool(block) is bool(leading or any(event.severity != "info" for event in told))
    assert all(f"{code} (step " in block.partition("no longer at the end: ")[2] for code in passed)
    if leading:
        allowed = {settings_text(change["set"]) for f in leading for change in report.remedies(f)[:1]}
        changes = [line.partition("to change: ")[2] for line in lines if "to change: " in line]
        assert set(changes) <= allowed


def test_a_deadlock_that_the_run_comes_out_of_is_taken_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = scenarios.rows(SCENARIOS["deadlock"], 0, 60)
    rows += [{**row, "learning_rate": 1e-4} for row in scenarios.rows(scenarios.HEALTHY["learning"], 0, 60)]
    folder, told = write_run(tmp_path / "run", rows)
    said = [(event.severity, event.message) for event in told if event.code == "deadlock"]
    assert said[0][0] == "critical"
    assert "never" not in said[0][1]
    assert said[-1] == ("info", "no longer seen: Deadlock")
    assert "deadlock" not in {f.code for f in examine(folder).diagnosis.leading}
    show_events(folder / "events.jsonl")
    block = capsys.readouterr().err
    assert "critical: deadlock, once" not in block
    assert "no longer at the end: " in block


def test_the_line_as_it_happens_takes_its_numbers_from_the_whole_run_as_the_doctor_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDir(tmp_path)
    rates = (1e-3, 5e-4)  # the schedule has lowered the rate; the recipe's is the first
    run.append("metrics.jsonl", [StepRecord(i, "grpo", {"learning_rate": rate}) for i, rate in enumerate(rates, 1)])
    EventLog(run).write([Event(2, "lr-too-high", "critical", "too fast")])
    assert "learning_rate=0.0002" in capsys.readouterr().err


def evaluation(step: int, stage: str, score: float, se: float) -> Mapping[str, Any]:
    return {"step": step, "stage": "eval", "eval_stage": stage, "eval/sums/score": score, "eval/sums/se": se}


@pytest.mark.parametrize(("late", "fell"), [(0.5, False), (0.1, True)])
def test_a_held_out_score_has_fallen_for_the_doctor_only_where_the_verdict_says_so(
    late: float, fell: bool, tmp_path: Path
) -> None:
    rows = scenarios.rows(scenarios.HEALTHY["learning"], 0, 30)
    lines = [evaluation(0, "start", 0.6, 0.1), *({"step": i, "stage": "grpo", **row} for i, row in enumerate(rows, 1))]
    lines.append(evaluation(30, "grpo", late, 0.1))
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    findings = {f.code: f for f in examine(tmp_path).diagnosis.findings}
    arguments = {argument.key for finding in findings.values() for argument in finding.evidence}
    assert ("held-out-fell" in arguments) is fell
