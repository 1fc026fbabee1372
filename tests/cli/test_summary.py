"""The end of a run on the terminal: strata first, the best constant answer beside them, and what it came to."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import strata_summary
from levelhead import api
from levelhead.cli import train
from levelhead.cli.events import show_events, why_stopped
from levelhead.cli.summary import show_scores, show_summary
from levelhead.diagnosis.verdict import judge
from levelhead.recipe import Recipe
from levelhead.terminal.console import SafeConsole


def shown(summary: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int = 80) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    show_summary(summary, Path("runs/demo"))
    return capsys.readouterr().out


def row(text: str, label: str) -> list[str]:
    """The cells of the first line that begins with a label."""
    line = next(line for line in text.splitlines() if line.strip().startswith(label))
    return [cell.strip() for cell in line.strip().removeprefix(label).split("  ") if cell.strip()]


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_holds_strata_baseline_and_verdict(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(strata_summary.summary(), capsys, monkeypatch, width)
    assert max(map(len, text.splitlines())) <= width
    assert row(text, "condition=disambig (256)") == ["-0.96 ± 0.01", "-0.04 ± 0.05", "+0.56 ± 0.04", "-0.50 ± 0.02"]
    assert row(text, "accuracy") == ["1.0%", "51.0%", "91.0%"]
    assert row(text, "balanced score") == ["-0.97 ± 0.01", "-0.01 ± 0.04", "+0.69 ± 0.03", "-0.01 ± 0.03"]
    assert row(text, "all items") == ["-0.97 ± 0.01", "-0.01 ± 0.04", "+0.69 ± 0.03", "-0.02 ± 0.03"]
    assert row(text, "above the constant") == ["-0.95 ± 0.01", "+0.01 ± 0.05", "+0.71 ± 0.04"]
    assert row(text, "in standard errors") == ["-108", "+0.2", "+20.2"]
    recited = text[text.index("faithfulness, 512 held-out items") :]
    for name, last in (("exact_match", "0.0%"), ("quoted", "0.0%"), ("abstained", "99.0%")):
        assert row(recited, name)[-1] == last
    assert row(recited, "in standard errors")[-1] == "+1.3"
    assert 'Best constant answer: "Evidence: none / Answer: unknown"' in text
    said = " ".join(text.split())
    assert f"fairness: {strata_summary.READS}" in said
    assert f"faithfulness: {strata_summary.RECITES}" in said
    assert "standard errors" not in said.replace("in standard errors", "")


def test_a_verdict_may_stand_beside_the_tasks_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = strata_summary.summary()
    for task, verdict in summary.pop("verdict").items():
        summary["tasks"][task]["verdict"] = verdict
    assert shown(summary, capsys, monkeypatch) == shown(strata_summary.summary(), capsys, monkeypatch)


def test_an_older_summary_is_shown_and_claims_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(strata_summary.older(), capsys, monkeypatch)
    assert row(text, "all items") == ["-0.97 ± 0.01", "-0.01 ± 0.04", "+0.69 ± 0.03"]
    assert all(line == line.rstrip() for line in text.splitlines() if line.startswith("all items"))
    assert row(text, "valid") == ["2.0%", "93.0%", "99.0%"]
    assert "the run was not measured against a constant answer" in " ".join(text.split())
    assert "constant answer:" not in text
    assert "improved" not in text


def test_a_run_that_did_not_come_to_its_end_has_no_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = strata_summary.summary()
    del summary["verdict"]
    for stages in summary["tasks"].values():
        del stages["grpo"]
    assert "no verdict, for the run did not come to its end" in shown(summary, capsys, monkeypatch)


def test_many_strata_take_a_line_each(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(strata_summary.many_strata(30), capsys, monkeypatch)
    assert sum(line.startswith("page=click-number-") for line in text.splitlines()) == 30
    assert "success" not in text


@pytest.mark.parametrize(
    ("answer", "said"),
    [("", "to write nothing"), ("  \n\n", "to write nothing"), ("\x1b]0;owned\x07[red]A\x1b[2J\nB", '"[red]A / B"')],
)
def test_what_a_policy_wrote_does_nothing_to_the_terminal(
    answer: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = strata_summary.summary()
    summary["tasks"]["fairness"]["grpo"]["constant"]["answer"] = answer
    text = shown(summary, capsys, monkeypatch)
    assert f"Best constant answer: {said}" in text
    assert "\x1b" not in text
    assert "\x07" not in text


@pytest.mark.parametrize("summary", [{}, {"tasks": {}}, {"tasks": {"a": {"sft": {"score": "nan"}, "verdict": 3}}}])
def test_a_summary_without_results_shows_nothing(
    summary: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(summary, capsys, monkeypatch) == ""


def test_scores_of_a_checkpoint_stand_side_by_side(tmp_path: Path) -> None:
    tasks = strata_summary.summary()["tasks"]
    with (tmp_path / "said").open("w") as file:
        scored = {way: {name: stages[key] for name, stages in tasks.items()} for way, key in _WAYS.items()}
        show_scores(Console(file=file, width=80), scored)
    text = (tmp_path / "said").read_text()
    assert row(text, "condition=ambig (256)") == ["+0.82 ± 0.03", "+0.02 ± 0.04", "+0.50 ± 0.02"]
    assert row(text, "in standard errors") == ["+20.2", "+0.2"]
    assert "fairness  bias/s_AMB  0.0180" in text


_WAYS = {"greedy": "grpo", "sampled": "sft"}


def test_json_carries_strata_baseline_and_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = strata_summary.summary()
    monkeypatch.setattr(api, "train", lambda *_, **__: api.Result("done", tmp_path, summary, None, None))
    train.run(Recipe.model_construct(name="demo"), tmp_path, resume=False, as_json=True)
    said = capsys.readouterr()
    assert json.loads(said.out) == {"outcome": "done", "run": str(tmp_path), **strata_summary.summary()}
    assert said.err == ""


LATIN = re.compile("[A-Za-z][A-Za-z_]+")
AS_IT_IS = {
    "fairness", "faithfulness", "condition", "ambig", "disambig", "answerable", "yes", "no", "accuracy", "exact_match",
    "quoted", "abstained", "token", "SFT", "GRPO", "runs", "demo", "report", "html", "unknown",
}  # fmt: skip
"""Names of tasks, strata and metrics, terms that stay, and the path of the page."""


def test_the_end_of_a_run_is_chinese_but_for_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = strata_summary.summary()
    for task, stages in ran["tasks"].items():
        verdict = judge(stages)
        assert verdict is not None
        ran["verdict"][task] = verdict.to_json()
    show_summary(ran, Path("runs/demo"), "zh")
    text = capsys.readouterr().out
    for words in ("均衡得分", "全部题目", "高出固定回答", "最佳固定回答\uff1a", "512 道留出题", "折合标准误"):
        assert words in text
    bare = re.sub('"[^"]*"|\u201c[^\u201d]*\u201d', "", " ".join(text.split()))
    assert set(LATIN.findall(bare)) <= AS_IT_IS


def test_the_tables_of_an_evaluation_are_chinese(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = strata_summary.summary()["tasks"]["fairness"]["grpo"]
    show_scores(SafeConsole(), {"greedy": {"fairness": result}, "sampled": {"fairness": result}}, "zh")
    text = capsys.readouterr().out
    heads = text.splitlines()[2].split()
    assert heads == ["贪心", "采样", "固定回答"]
    assert "均衡得分" in text


def test_what_was_seen_in_a_run_is_told_in_chinese(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = {"message": "no gradient for 8 steps", "message_zh": "连续 8 步没有梯度"}
    spike = {"step": 4, "code": "gradient-spike", "severity": "warning", **words}
    stop = {"step": 9, "code": "deadlock", "severity": "critical", "action": "stop", **words}
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in (spike, spike, stop)))
    show_events(tmp_path / "events.jsonl", "zh")
    told = capsys.readouterr().err
    assert "严重 deadlock\uff0c一次\uff0c第 9 步" in told
    assert "警告 gradient-spike\uff0c2 次\uff0c第 4 步" in told
    assert "连续 8 步没有梯度" in told
    assert why_stopped(tmp_path / "events.jsonl", "zh").startswith("在第 9 步因 deadlock 停止\uff1b详见 ")
