"""A switch of the gradient merger is told, and happens where the recipe says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from levelhead.api import train
from levelhead.errors import InputError
from levelhead.recipe import Recipe
from levelhead.training.prepare import check_merging
from small_run import events, recipe, steps


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


def merging(folder: Path, **merge: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Steps and switches of a run that looks at every update."""
    document = recipe(
        folder,
        grpo__updates_per_batch=1,
        grpo__merge={"monitor_every": 1, "switch_after": 3, "switch_to": "upgrad", **merge},
    )
    train({**document, "sft": None}, out=folder / "run")
    return steps(folder / "run", "grpo"), [e for e in events(folder / "run") if e["code"] == "merge-switched"]


def test_a_switch_is_an_event_with_its_cosines_and_the_way_back(tmp_path: Path) -> None:
    rows, switches = merging(tmp_path, conflict_below=1.0)
    (switch,) = switches
    assert (switch["step"], switch["severity"], switch["action"]) == (3, "warning", "adapt")
    assert "of one and two pull apart" in switch["message"]
    assert "below 1, for 3 looks in a row): upgrad takes over from the sum" in switch["message"]
    assert switch["evidence"]["merge/cosine/one/two"] < 1.0
    assert (switch["evidence"]["from"], switch["evidence"]["to"]) == ("sum", "upgrad")
    assert "merge/conflict" in rows[0]


def test_tasks_conflict_below_the_cosine_that_the_recipe_gives(tmp_path: Path) -> None:
    rows, switches = merging(tmp_path, conflict_below=-1.0)
    assert switches == []
    assert {row["merge/conflict"] for row in rows} == {0.0}


def test_a_rule_whose_solver_is_missing_is_refused_for_three_tasks_and_not_for_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("levelhead.objective.aggregation.aggregators.find_spec", lambda name: None)

    def of(tasks: int, kind: str) -> Recipe:
        sections = [{"kind": "math", "name": f"m{i}"} for i in range(tasks)]
        grpo = {"steps": 1, "merge": {"kind": kind}}
        return Recipe.model_validate({"model": {"preset": "tiny"}, "tasks": sections, "grpo": grpo})

    check_merging(of(2, "cagrad"))
    check_merging(of(3, "pcgrad"))
    check_merging(of(3, "sum"))
    with pytest.raises(InputError, match=r"grpo.merge: cagrad on three tasks or more needs torchjd and cvxpy.*merge"):
        check_merging(of(3, "cagrad"))
