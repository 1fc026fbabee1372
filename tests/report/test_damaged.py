"""A damaged run folder costs sections of its report, never the report, and a report never costs a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import small_run
from levelhead import train
from levelhead.report import notes, page, write
from levelhead.report.page import render
from levelhead.report.reading import read_run
from levelhead.report.scores import verdict_of
from synthetic_run import write_run


def test_a_section_that_cannot_be_drawn_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", steps=8)
    whole = render(read_run(run))

    def broken(_: object) -> str:
        raise TypeError("damaged beyond what is foreseen")

    monkeypatch.setattr(notes, "checks", broken)
    monkeypatch.setattr(page.cards, "headline", broken)
    shown = render(read_run(run))
    assert "section &#x27;Preflight&#x27; could not be drawn (TypeError)" in shown
    assert "the headline could not be drawn" in shown
    assert "could not be drawn" not in whole
    assert "Gradient norm" in shown


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("recipe.yaml", "name: !!float x", "recipe.yaml is not valid YAML"),
        ("recipe.yaml", "x: " + "[" * 700, "nested too deeply"),
        ("summary.json", "[" * 100_000, "summary.json is not valid JSON"),
        ("summary.json", '{"tasks": {"a": {"grpo": {"score": 1e308, "se": 1e308}}}}', ""),
        ("metrics.jsonl", '{"step": 1, "stage": [], "reward": 1e308}\n{"step": {}, "stage": {"a": 1}}\n', ""),
        ("events.jsonl", '{"step": 1e400, "code": [], "severity": {}, "action": [1]}\n', ""),
        ("check.json", '{"checks": [{"status": {}, "evidence": 3}]}', ""),
    ],
)
def test_an_odd_file_is_no_crash(tmp_path: Path, name: str, text: str, said: str) -> None:
    run = write_run(tmp_path / "run", steps=8)
    (run / name).write_text(text, encoding="utf-8")
    shown = write(run).read_text(encoding="utf-8")
    assert said in shown
    assert "could not be drawn" not in shown


def test_a_score_of_hundreds_of_digits_costs_its_task_the_verdict_and_not_the_headline() -> None:
    stages = {"start": {"score": 10**400, "se": 0.1, "n": 64}, "grpo": {"score": 0.5, "se": 0.1, "n": 64}}
    judged = verdict_of({"tasks": {"t": {**stages, "verdict": {"text": "better", "improved": False}}}}, "t")
    assert judged is None or judged.outcome == "not improved"


def test_a_pipe_in_the_folder_is_not_waited_for(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=8)
    for name in ("summary.json", "events.jsonl"):
        (run / name).unlink()
        os.mkfifo(run / name)
    assert "summary.json: is a pipe" in write(run).read_text(encoding="utf-8")


def test_a_report_that_fails_does_not_fail_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> str:
        raise RecursionError("deep")

    monkeypatch.setattr(page, "render", broken)
    result = train(small_run.recipe(tmp_path), out=tmp_path / "run")
    assert result.outcome == "done"
    (event,) = [e for e in small_run.events(tmp_path / "run") if e["code"] == "report-failed"]
    assert (event["severity"], "RecursionError" in event["message"]) == ("warning", True)
