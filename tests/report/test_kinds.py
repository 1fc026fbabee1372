"""The report tells apart the kinds of problem that a task holds."""

from __future__ import annotations

import pytest

from levelhead.report import page as page_module
from levelhead.report.kinds import charts, table
from levelhead.report.page import render
from levelhead.report.reading import Run

KINDS = ("click-test", "enter-text")


def run_of(*, curriculum: bool = True) -> Run:
    run = Run("pages", recipe={"tasks": [{"kind": "browser"}]})
    shown = {"success": 0.5, "click-test/success": 0.25, "click-test/steps": 1.5, "enter-text/success": 0.75}
    later = {"success": 0.7, "click-test/success": 1.0, "click-test/steps": 1.25, "enter-text/success": 0.4}
    run.summary = {"tasks": {"browser": {"sft": {"metrics": shown}, "grpo": {"metrics": later}}}}
    run.metrics = [{"step": 5, "stage": "eval", "eval_stage": "sft", **under(shown)}]
    for step, share in ((1, 0.5), (2, 0.8)):
        row = {"step": step, "stage": "grpo", "reward": 0.5, "reward/browser": 0.5}
        if curriculum:
            row |= {f"curriculum/share/browser/{k}": s for k, s in zip(KINDS, (share, 1 - share), strict=True)}
            row |= {f"curriculum/success/browser/{k}": s for k, s in zip(KINDS, (0.5, 0.9), strict=True)}
        run.metrics.append(row)
    run.metrics.append({"step": 2, "stage": "eval", "eval_stage": "grpo", **under(later)})
    return run


def under(metrics: dict[str, float]) -> dict[str, float]:
    return {f"eval/browser/{name}": value for name, value in metrics.items()}


def test_success_of_each_kind_is_shown_by_stage() -> None:
    text = table(run_of())
    assert "<td>browser/click-test</td><td>25%</td><td>100%</td><td>1.2</td>" in text
    assert "<td>browser/enter-text</td><td>75%</td><td>40%</td><td></td>" in text
    assert "browser/</td>" not in text


def test_held_out_success_is_drawn_over_the_steps_without_the_overall_one() -> None:
    held_out = charts(run_of())[0]
    assert [(trace["name"], trace["x"], trace["y"]) for trace in held_out.data] == [
        ("browser/click-test", [0, 2], [0.25, 1.0]),
        ("browser/enter-text", [0, 2], [0.75, 0.4]),
    ]


def test_the_curriculums_shares_stack_to_one() -> None:
    drawn = charts(run_of())[2]
    assert [sum(values) for values in zip(*(trace["y"] for trace in drawn.data), strict=True)] == pytest.approx([1, 1])
    assert charts(run_of())[1].data[1]["y"] == [0.9, 0.9]


def test_a_run_without_curriculum_has_no_charts_of_it() -> None:
    assert [chart.id for chart in charts(run_of(curriculum=False))] == ["kinds-held-out"]


def test_a_run_without_kinds_has_no_such_section(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "plotly_script", lambda: "")
    assert "<h2>Kinds of problem</h2>" in render(run_of())
    plain = Run("plain", metrics=[{"step": 1, "stage": "grpo", "reward": 0.5}])
    plain.summary = {"tasks": {"math": {"sft": {"metrics": {"accuracy": 0.5}}, "grpo": {"score": 1.0}}}}
    assert table(plain) == ""
    assert charts(plain) == []
    assert "<h2>Kinds of problem</h2>" not in render(plain)
