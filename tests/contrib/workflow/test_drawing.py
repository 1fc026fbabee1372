"""A workflow is drawn as it runs: in its order, every operator once, no two boxes over each other."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from levelhead.contrib.workflow.drawing import drawing
from levelhead.contrib.workflow.language import calls, parse

TEXTS = [
    "Custom",
    "Custom -> Format",
    "[Custom, AnswerGenerate -> Review ? Revise : done] -> ScEnsemble -> Format",
    "AnswerGenerate -> (Review ? Revise : done) * 3 -> Format",
    "Programmer -> Test ? (Revise -> Format) : Format",
]


def drawn(text: str) -> dict[str, Any]:
    picture = drawing(text)
    assert picture is not None
    return picture


def apart(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return (
        one["x"] + one["width"] <= other["x"]
        or other["x"] + other["width"] <= one["x"]
        or one["y"] + one["height"] <= other["y"]
        or other["y"] + other["height"] <= one["y"]
    )


@pytest.mark.parametrize("text", TEXTS)
def test_every_operator_has_a_box_of_its_own_within_the_picture(text: str) -> None:
    picture = drawn(text)
    boxes = picture["boxes"]
    named = sorted(box["label"] for box in boxes if box["kind"] != "done")
    assert named == sorted(call.operator for call in calls(parse(text)))
    assert all(apart(one, other) for i, one in enumerate(boxes) for other in boxes[:i])
    for box in [*boxes, *picture["frames"]]:
        assert 0 <= box["x"] <= box["x"] + box["width"] <= picture["width"]
        assert 0 <= box["y"] <= box["y"] + box["height"] <= picture["height"]


def ends(picture: dict[str, Any], label: str) -> tuple[list[float], list[float]]:
    """The middle of a box's left and right edge."""
    box = next(box for box in picture["boxes"] if box["label"] == label)
    middle = box["y"] + box["height"] / 2
    return [box["x"], middle], [box["x"] + box["width"], middle]


def test_a_chain_is_an_arrow_from_box_to_box() -> None:
    picture = drawn("Custom -> Format")
    assert picture["lines"] == [
        {"points": [ends(picture, "Custom")[1], ends(picture, "Format")[0]], "label": "", "arrow": True}
    ]


def test_branches_stand_above_each_other_and_meet_again() -> None:
    picture = drawn("[Custom, AnswerGenerate] -> ScEnsemble")
    first, second, vote = (ends(picture, name) for name in ("Custom", "AnswerGenerate", "ScEnsemble"))
    assert first[0][0] == second[0][0] < vote[0][0]
    assert first[0][1] < second[0][1]
    into = [line["points"][-1] for line in picture["lines"]]
    assert first[0] in into
    assert second[0] in into
    joins = [line["points"][-1] for line in picture["lines"] if line["points"][0] in (first[1], second[1])]
    assert len(joins) == 2
    assert joins[0] == joins[1]


def test_a_conditional_names_its_two_ways_and_done_leads_nowhere() -> None:
    picture = drawn("Custom -> (Review ? Revise : done) * 3 -> Format")
    ways = {line["label"]: line["points"][-1] for line in picture["lines"] if line["label"]}
    assert ways == {"fault": ends(picture, "Revise")[0], "no fault": ends(picture, "done")[0]}
    assert ends(picture, "done")[1] not in [line["points"][0] for line in picture["lines"]]
    (frame,) = picture["frames"]
    assert frame["label"] == "at most 3 times"
    inside = [box for box in picture["boxes"] if not apart(frame, box)]
    assert sorted(box["label"] for box in inside) == ["Review", "Revise", "done"]


@pytest.mark.parametrize("text", ["", "Nonsense(", "Custom ->", "x" * 10_000, " -> ".join(["Custom"] * 300)])
def test_what_is_no_workflow_or_too_large_is_not_drawn(text: str) -> None:
    assert drawing(text) is None


def test_without_the_parser_nothing_is_drawn_and_nothing_fails() -> None:
    code = "import sys; sys.modules['lark'] = None\nfrom levelhead.contrib.workflow.drawing import drawing\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "print(drawing('Custom'))"], capture_output=True, text=True, check=False
    )
    assert done.stdout == "None\n", done.stderr
