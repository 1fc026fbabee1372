"""Runs whose reward function fails: on every answer, on many, on a few, and in evaluations."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest

from levelhead.api import check, train
from levelhead.doctor.report import examine
from levelhead.recipe import validate
from levelhead.report import write
from reward_runs import one_task, run_command
from small_run import events, metrics, recipe, same_weights, steps


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are written by the tests that look at one."""
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


FAILS = """
import pathlib
calls = pathlib.Path(__file__).with_name("calls")


def reward(prompts, completions, completion_ids, trainer_state, **columns):
    batch = len(completions)
    values = [float(sum(ids) % 5) / 4 for ids in completion_ids]
    if trainer_state.epoch == 1 and not FAIL_IN_EVALUATIONS:
        return values
    if any({when}):
        raise KeyError("no such \\x1b[31mcolumn")
    return values
"""


def failing(folder: Path, when: str, *, evaluations: bool = False, **changes: Any) -> dict[str, Any]:
    source = FAILS.replace("{when}", when).replace("FAIL_IN_EVALUATIONS", str(evaluations))
    given = one_task(folder, source, **changes)
    given["tasks"][0]["on_reward_error"] = "drop"
    return given


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    return functools.partial(run_command, tmp_path, monkeypatch=monkeypatch, capsys=capsys)


ALWAYS = "True for _ in completions"
MOSTLY = "sum(ids) % 4 for ids in completion_ids"
SELDOM = "sum(ids) % 7 == 0 for ids in completion_ids"


def test_a_reward_that_fails_on_every_answer_stops_the_run_after_three_steps(command: Any, tmp_path: Path) -> None:
    code, err = command(failing(tmp_path, ALWAYS, grpo__steps=8, checkpoint__every=0))
    run = tmp_path / "run"
    assert code == 1
    assert [row["step"] for row in steps(run, "grpo")] == [1, 2, 3]
    assert [row["frac_reward_errors"] for row in steps(run, "grpo")] == [1.0, 1.0, 1.0]
    told = [event for event in events(run) if event["code"] == "reward-errors"]
    assert [(event["step"], event["severity"], event["action"]) for event in told] == [
        (1, "critical", None),
        (2, "critical", None),
        (3, "critical", None),
        (3, "critical", "stop"),
    ]
    assert told[0]["evidence"] == {
        "task": "one",
        "answers": 12,
        "dropped": 12,
        "by": {"reward": 12},
        "cause": "reward-function",
    }
    assert events(run)[-1] == told[-1]
    assert "step 1: critical: reward-errors: one: 12 of 12 answers were dropped" in err
    assert "mine.py:reward raised KeyError: 'no such" in err
    assert "critical: reward-errors [stop]: one: every answer of 3 steps in a row was dropped" in err
    assert "stopped at step 3 by reward-errors" in err.splitlines()[-1]
    assert "tasks[].on_reward_error=stop" in err
    assert "\x1b" not in err
    report = examine(run)
    assert (report.diagnosis.verdict, report.diagnosis.findings[0].code) == ("critical", "reward-errors")
    write(run)
    assert "reward-errors" in (run / "report.html").read_text(encoding="utf-8")


def test_a_run_that_loses_more_than_half_of_its_answers_goes_on_and_says_so(command: Any, tmp_path: Path) -> None:
    code, err = command(failing(tmp_path, MOSTLY))
    run = tmp_path / "run"
    rows = steps(run, "grpo")
    assert code == 0
    assert len(rows) == 4
    assert all(row["frac_reward_errors"] > 0.5 for row in rows)
    assert "critical: reward-errors" in err
    report = examine(run)
    assert (report.diagnosis.verdict, report.diagnosis.findings[0].code) == ("critical", "reward-errors")


def test_a_few_dropped_answers_are_a_note(command: Any, tmp_path: Path) -> None:
    code, err = command(failing(tmp_path, SELDOM))
    run = tmp_path / "run"
    assert code == 0
    shares = [row["frac_reward_errors"] for row in steps(run, "grpo")]
    assert 0 < max(shares) <= 0.5
    told = [event for event in events(run) if event["code"] == "reward-errors"]
    assert {event["severity"] for event in told} == {"info"}
    assert "reward-errors" not in err
    assert "reward-errors" not in [finding.code for finding in examine(run).diagnosis.findings]


def test_steps_that_have_answers_left_start_the_count_again(tmp_path: Path) -> None:
    when = "trainer_state.global_step % 3 < 2 for _ in completions"
    result = train(failing(tmp_path, when, grpo__steps=6), out=tmp_path / "run")
    assert result.outcome == "done"
    assert [row["frac_reward_errors"] for row in steps(result.folder, "grpo")] == [1, 1, 0, 1, 1, 0]


def test_an_evaluation_that_loses_its_answers_is_told(tmp_path: Path) -> None:
    given = failing(tmp_path, "trainer_state.epoch == 1 for _ in completions", evaluations=True)
    result = train(given, out=tmp_path / "run")
    assert result.outcome == "done"
    told = [event for event in events(result.folder) if event["code"] == "reward-errors"]
    assert [(event["step"], event["severity"]) for event in told] == [(0, "critical"), (4, "critical")]
    assert "1 of 1 answers of an evaluation were dropped" in told[0]["message"]


def test_the_count_of_lost_steps_survives_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from levelhead.training.grpo import GrpoTrainer

    given = failing(tmp_path, ALWAYS, grpo__steps=8)
    whole = train(given, out=tmp_path / "whole")
    real = GrpoTrainer.step

    def step(self: GrpoTrainer, step: int) -> Any:
        if step == 3:
            raise RuntimeError("killed")
        return real(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(GrpoTrainer, "step", step)
        with pytest.raises(RuntimeError, match="killed"):
            train(given, out=tmp_path / "run")
    resumed = train(given, out=tmp_path / "run", resume=True)
    assert (resumed.outcome, whole.outcome) == ("stopped", "stopped")
    assert metrics(resumed.folder) == metrics(whole.folder)
    assert same_weights(resumed.model, whole.model)


def test_one_broken_task_of_two_is_named_and_stops_the_run(tmp_path: Path) -> None:
    given = failing(tmp_path, ALWAYS, grpo__steps=8)
    given["tasks"].append({**recipe(tmp_path)["tasks"][1], "on_reward_error": "drop"})
    result = train(given, out=tmp_path / "run")
    assert result.outcome == "stopped"
    rows = steps(result.folder, "grpo")
    assert len(rows) == 3
    for row in rows:
        assert (row["frac_reward_errors/one"], row["frac_reward_errors/two"]) == (1.0, 0.0)
        assert 0 < row["frac_reward_errors"] < 1
        assert math.isfinite(row["grad_norm"])


@pytest.mark.parametrize(("when", "status"), [(ALWAYS, "fail"), (MOSTLY, "warn"), (SELDOM, "pass")])
def test_the_preflight_foresees_it(tmp_path: Path, when: str, status: str) -> None:
    report = check(validate(failing(tmp_path, when, grpo__batch_size=24, grpo__group_size=6)))
    (dropped,) = [one for one in report.checks if one.name == "rewards/dropped/one"]
    assert dropped.status == status
    assert not [one for one in report.checks if one.name == "rewards/error"]
