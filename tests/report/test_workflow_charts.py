"""Charts of workflows show the numbers of the analysis."""

from __future__ import annotations

import pytest

from levelhead.report.workflows import charts
from levelhead.watch.workflows import Batch, analyse

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
