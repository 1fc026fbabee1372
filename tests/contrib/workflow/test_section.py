"""Charts of workflows show the numbers of the analysis."""

from __future__ import annotations

import pytest

from levelhead.contrib.workflow.analysis import analyse
from levelhead.contrib.workflow.log import Batch
from levelhead.contrib.workflow.section import charts
from levelhead.report import page as page_module
from levelhead.report.page import render
from levelhead.report.reading import Run

BATCHES = [
    Batch(1, ("Custom", "Custom -> Review", "[Custom, Custom] -> ScEnsemble", None), updated=True),
    Batch(2, (None, None, None, "Custom"), updated=True),
    Batch(3, ("Custom", "Custom", "Custom", "Custom"), updated=False),
]


def test_the_layers_of_the_structure_chart_stack_to_one_at_every_step() -> None:
    structures = charts(analyse(BATCHES))[0]
    layers = [trace["y"] for trace in structures.data]
    assert len(layers) == 6
    assert [sum(values) for values in zip(*layers, strict=True)] == pytest.approx([1.0, 1.0, 1.0])
    fallback = next(trace for trace in structures.data if trace["name"] == "fallback")
    assert fallback["y"] == pytest.approx([0.25, 0.75, 0.0])


def test_the_validity_chart_marks_the_update_before_a_collapse() -> None:
    validity = charts(analyse(BATCHES))[1]
    assert validity.data[0]["y"] == pytest.approx([0.75, 0.25, 1.0])
    assert [shape["x0"] for shape in validity.layout["shapes"]] == [1]
    assert "1 of 2 updates" in validity.hint


def test_operators_are_drawn_with_their_shares() -> None:
    operators = charts(analyse(BATCHES))[3]
    assert operators.data[0]["y"][-1] == "Custom"
    assert operators.data[0]["x"][-1] == pytest.approx(1.0)


def test_a_run_without_a_single_workflow_still_has_charts_and_an_empty_one_none() -> None:
    assert len(charts(analyse([Batch(1, (None, None), updated=True)]))) == 3
    assert charts(analyse([])) == []


def run_of(kind: str) -> Run:
    info = {"domain": "qa", "difficulty": "hard", "workflow": "Custom <b>", "tokens": 300, "calls": 1}
    row = {"task": kind, "step": 5, "valid": True, "reward": 0.5, "parts": {"correctness": 1.0}, "info": info}
    run = Run("flows", recipe={"tasks": [{"kind": kind}]}, rollouts={"grpo-000005": [row]})
    run.samples = {"sft": [], "grpo": [{**row, "prompt_id": "p"}]}
    run.metrics = [{"step": step, "stage": "grpo", "reward": 0.5, f"validity/{kind}": 1.0} for step in (1, 2)]
    return run


def test_the_page_of_a_workflow_run_has_its_tables_and_charts_and_others_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page_module, "plotly_script", lambda: "")
    page = render(run_of("workflow"))
    assert "<h2>Workflows</h2>" in page
    assert "<td>qa, hard</td><td>1</td><td>Custom &lt;b&gt;</td><td>100%</td><td>0.500</td>" in page
    assert 'id="plot-workflow-structures"' in page
    assert "<h2>Workflows</h2>" not in render(run_of("math"))
