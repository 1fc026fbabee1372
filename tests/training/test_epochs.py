"""Passes over the data as the length of a stage."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from levelhead import train
from levelhead.errors import InputError
from levelhead.recipe import load, plain, validate
from levelhead.training.prepare import make_tasks
from small_run import metrics, recipe, steps


def keys(folder: Path, **changes: Any) -> dict[str, Any]:
    return recipe(folder, sft__data_epochs=0.4, sft__steps=None, grpo__data_epochs=1, grpo__steps=None, **changes)


def test_a_stage_ends_when_it_has_passed_over_the_data(tmp_path: Path) -> None:
    result = train(keys(tmp_path), out=tmp_path / "run")
    prompts = sum(len(list(task.prompts("train", 0))) for task in make_tasks(validate(keys(tmp_path))).values())
    assert len(steps(result.folder, "sft")) == math.ceil(0.4 * prompts / 4)
    assert len(steps(result.folder, "grpo")) == math.ceil(prompts / 4)
    rows = [row for row in steps(result.folder, "grpo") if row["learning_rate"] > 0]
    assert rows[-1]["learning_rate"] < rows[0]["learning_rate"] / 2, "the schedule ends with the stage"


@pytest.mark.slow
def test_passes_and_steps_are_the_same_run(tmp_path: Path) -> None:
    passes = train(keys(tmp_path), out=tmp_path / "passes")
    counts = {name: len(steps(passes.folder, name)) for name in ("sft", "grpo")}
    same = recipe(tmp_path, sft__steps=counts["sft"], grpo__steps=counts["grpo"])
    assert metrics(train(same, out=tmp_path / "steps").folder) == metrics(passes.folder)


def test_the_recipe_on_disk_says_passes_and_is_read_again(tmp_path: Path) -> None:
    result = train(keys(tmp_path), out=tmp_path / "run")
    written = yaml.safe_load((result.folder / "recipe.yaml").read_text(encoding="utf-8"))
    assert (written["grpo"]["data_epochs"], "steps" in written["grpo"]) == (1.0, False)
    assert plain(load(result.folder / "recipe.yaml")) == written
    assert train(load(result.folder / "recipe.yaml"), out=result.folder, resume=True).outcome == "done"


def test_steps_and_passes_together_are_refused(tmp_path: Path) -> None:
    for stage in ("sft", "grpo"):
        both = {"model": {"preset": "tiny"}, "tasks": [{"kind": "math"}], stage: {"steps": 3, "data_epochs": 1}}
        with pytest.raises(InputError, match=f"{stage}: give steps or data_epochs, not both"):
            validate(both)
