"""A run that an error or the guard has ended is never called healthy, however well its rows look."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import watch_scenarios as scenarios
from levelhead.doctor.live import follow
from levelhead.doctor.render import text
from levelhead.doctor.report import Report, examine
from levelhead.errors import InputError

REFUSED = "the endpoint http://localhost:8000/v1 refuses: 401 \x1b[31mwrong key"


def stop(code: str = "rewards", step: int = 30, **more: Any) -> dict[str, Any]:
    evidence = {"stage": "grpo", "error": "EndpointError"}
    base = {"step": step, "code": code, "severity": "critical", "message": REFUSED, "action": "stop"}
    return {**base, "evidence": evidence, **more}


def write(folder: Path, *events: dict[str, Any], rows: int = 30) -> Path:
    """A run of our own that learns, and its events."""
    told = scenarios.rows(scenarios.HEALTHY["learning"], 0, 30)[:rows]
    lines = [{"step": i, "stage": "grpo", **row} for i, row in enumerate(told, 1)]
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def first(report: Report) -> str:
    return report.diagnosis.findings[0].code


def test_the_rows_alone_are_healthy(tmp_path: Path) -> None:
    report = examine(write(tmp_path / "run"))
    assert (report.diagnosis.verdict, first(report)) == ("learns", "learns")
    assert "ended" not in report.to_json()


def test_a_run_ended_by_the_endpoint_names_it_and_what_to_change_there(tmp_path: Path) -> None:
    report = examine(write(tmp_path / "run", stop()))
    assert (report.diagnosis.verdict, first(report)) == ("critical", "rewards-stopped")
    assert "healthy" not in {finding.code for finding in report.diagnosis.findings}
    said = " ".join(text(report).split())
    assert "an endpoint that refused, fell silent or ran out of budget: the endpoint http://localhost:8000/v1" in said
    assert "401 wrong key" in said
    assert "tasks[].judge.api_key_env" in said
    assert "\x1b" not in text(report)
    document = report.to_json()
    assert document["ended"] == {"step": 30, "code": "rewards", "message": REFUSED}
    assert report.fails("critical")


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (stop(evidence={}), "rewards-stopped"),
        (stop(evidence=None), "rewards-stopped"),
        (stop("failed", message="OutOfMemoryError: no memory"), "run-stopped"),
        (stop("an-observers-own"), "run-stopped"),
        (stop("entropy-collapse"), "entropy-collapse"),
        (stop("nonfinite"), "nonfinite"),
        (stop(step=0), "rewards-stopped"),
        (stop(step=None), "rewards-stopped"),
    ],
)
def test_whatever_stopped_it_is_the_first_finding(event: dict[str, Any], code: str, tmp_path: Path) -> None:
    report = examine(write(tmp_path / "run", {**stop("endpoint"), "action": None}, event))
    assert (report.diagnosis.verdict, first(report)) == ("critical", code)


@pytest.mark.parametrize(
    "events",
    [
        [stop("interrupted", severity="info")],
        [stop("entropy-collapse", step=12)],  # rows after it: the run was resumed
        [stop(), {**stop("endpoint", 30), "severity": "info", "action": None}],
        [{"code": "odd"}],
    ],
)
def test_a_run_that_was_interrupted_or_went_on_is_judged_by_its_rows(
    events: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert not examine(write(tmp_path / "run", *events)).diagnosis.faulty


def test_a_run_that_ended_before_its_first_row_says_what_ended_it(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"ended before its first row\.\nIts last event: rewards: the endpoint"
    ) as error:
        examine(write(tmp_path / "run", stop(step=0), rows=0))
    assert "\x1b" not in str(error.value)


def test_a_stop_among_thousands_of_events_is_seen(tmp_path: Path) -> None:
    noise = [{**stop("endpoint", 3), "severity": "warning", "action": None}] * 2500
    assert first(examine(write(tmp_path / "run", *noise, stop()))) == "rewards-stopped"


def test_following_a_run_reports_its_end_though_no_row_comes_any_more(tmp_path: Path) -> None:
    run = write(tmp_path / "run")
    looks = 0

    def idle() -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:
            with (run / "events.jsonl").open("a") as file:
                file.write(json.dumps(stop()) + "\n")
        return looks < 5

    reports = list(follow(run, every=0.0, idle=idle))
    assert [first(report) for report in reports] == ["learns", "rewards-stopped"]
