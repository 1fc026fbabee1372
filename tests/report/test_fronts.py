"""The front on the page: every pair of objectives as a picture with steps, and nothing where there is no front."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from levelhead.report import fronts
from levelhead.report.page import render
from levelhead.report.reading import Run, read_run


def page(names: tuple[str, ...] = ("one", "two")) -> dict[str, Any]:
    size = len(names)
    return {
        "objectives": list(names),
        "reference": [0.0] * size,
        "hypervolume": 5.0,
        "hypervolume_se": 0.25,
        "knee": 4,
        "points": [
            {"step": 0, "stage": "start", "values": [0.1] * size, "errors": [0.1] * size, "front": False},
            {"step": 4, "stage": "sft", "values": [1.0] + [3.0] * (size - 1), "errors": [0.1] * size, "front": True,
             "chance": 0.9, "hypervolume": 3.0, "weights": "checkpoints/front/step-000004"},
            {"step": 9, "stage": "grpo", "values": [3.0] + [1.0] * (size - 1), "errors": [0.2] * size, "front": True,
             "chance": 1.0, "hypervolume": 5.0},
        ],
    }  # fmt: skip


def test_a_front_is_drawn_with_its_steps_errors_and_knee() -> None:
    picture, volume = fronts.charts(Run("r", pareto=page()))
    rest, front, knee = picture.data
    assert (front["x"], front["y"], front["text"]) == ([1.0, 3.0], [3.0, 1.0], ["4", "9"])
    assert front["error_x"]["array"] == [0.1, 0.2]
    assert front["line"]["shape"] == "vh", "what lies between two points and is not below the lower one is not beaten"
    assert (rest["text"], knee["text"]) == (["0"], ["4"])
    assert volume.data[0]["y"] == [3.0, 5.0]
    assert picture.layout["xaxis"]["title"]["text"] == "one"


def test_an_axis_of_scores_between_zero_and_one_has_ticks_between_them() -> None:
    """The page marks every whole number where an axis ends below 8, which is right for steps and not for scores."""
    picture = fronts.charts(Run("r", pareto=page()))[0]
    assert picture.layout["xaxis"]["tickmode"] == "auto"


def test_points_too_close_to_tell_apart_share_one_label() -> None:
    made = page()
    made["points"].append({**made["points"][1], "step": 12, "values": [1.02, 2.98]})
    front = fronts.charts(Run("r", pareto=made))[0].data[1]
    assert front["text"] == ["4, 12", "", "9"]


def test_the_table_names_volume_reference_knee_and_weights() -> None:
    text = fronts.table(Run("r", pareto=page()))
    for words in ("Hypervolume 5 \u00b1 0.25", "one 0, two 0", "Knee: step 4.", "checkpoints/front/step-000004", "90%"):
        assert words in text
    made = page()
    del made["points"][1]["weights"]
    assert "weights" not in fronts.table(Run("r", pareto=made)), "a run that saves none has no empty column"


def test_three_objectives_are_drawn_pair_by_pair_without_a_line() -> None:
    charts = fronts.charts(Run("r", pareto=page(("a", "b", "c"))))
    assert [chart.id for chart in charts] == ["front-0-1", "front-0-2", "front-1-2", "hypervolume"]
    assert charts[0].data[1]["mode"] == "markers+text"


@pytest.mark.parametrize(
    "pareto",
    [
        {},
        {"objectives": ["one"], "points": []},
        {"objectives": "one", "points": 3},
        {"objectives": ["a", "b"], "points": [{"step": 1}, 7, {"values": [1.0], "errors": [0.0]}]},
        {"objectives": ["a", "b"], "points": [{"values": ["nan", 1.0], "errors": [0.0, 0.0]}]},
    ],
)
def test_a_run_without_a_front_or_with_a_damaged_one_has_no_section(pareto: dict[str, Any]) -> None:
    run = Run("r", pareto=pareto)
    assert fronts.charts(run) == []
    assert fronts.table(run) == ""


def test_the_section_stands_on_the_page_and_names_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "pareto.json").write_text(json.dumps(page(("<b>one", "two"))))
    text = render(read_run(tmp_path))
    assert "Pareto front" in text
    assert "<b>one" not in text
    (tmp_path / "pareto.json").write_text("{broken")
    assert "Pareto front" not in render(read_run(tmp_path))
