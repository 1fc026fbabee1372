"""Data that leak, ids that repeat and weights that cannot move are found before the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from levelhead.preflight import preflight
from levelhead.recipe import validate
from levelhead.records import Prompt
from levelhead.tasks.function.task import FunctionTask
from levelhead.training.prepare import prepare
from small_run import recipe, rows, write_rows


def leak(patch: pytest.MonkeyPatch) -> None:
    real = FunctionTask.prompts

    def prompts(self: FunctionTask, split: Any, seed: int) -> Iterator[Prompt]:
        yield from real(self, split, seed)
        if split == "eval":
            first = next(iter(real(self, "train", seed)))
            yield Prompt("another id", first.task, first.messages, facts=first.facts)

    patch.setattr(FunctionTask, "prompts", prompts)


def leak_back(patch: pytest.MonkeyPatch) -> None:
    real = FunctionTask.prompts

    def prompts(self: FunctionTask, split: Any, seed: int) -> Iterator[Prompt]:
        yield from real(self, split, seed)
        if split == "train":
            yield list(real(self, "eval", seed))[-1]

    patch.setattr(FunctionTask, "prompts", prompts)


def one_side(patch: pytest.MonkeyPatch) -> None:
    real = FunctionTask.prompts
    patch.setattr(FunctionTask, "prompts", lambda self, split, seed: real(self, "train", seed))


def first_twice(patch: pytest.MonkeyPatch) -> None:
    real = FunctionTask.prompts

    def prompts(self: FunctionTask, split: Any, seed: int) -> Iterator[Prompt]:
        items = list(real(self, split, seed))
        yield from [items[0], *items]

    patch.setattr(FunctionTask, "prompts", prompts)


def half_again(patch: pytest.MonkeyPatch) -> None:
    real = FunctionTask.prompts

    def prompts(self: FunctionTask, split: Any, seed: int) -> Iterator[Prompt]:
        items = list(real(self, split, seed))
        yield from [*items, *items[::2]]

    patch.setattr(FunctionTask, "prompts", prompts)


def twins(patch: pytest.MonkeyPatch) -> None:
    real = FunctionTask.prompts

    def prompts(self: FunctionTask, split: Any, seed: int) -> Iterator[Prompt]:
        listed = list(real(self, split, seed))
        yield from [*listed, listed[0]]

    patch.setattr(FunctionTask, "prompts", prompts)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("data/held-out/one", leak),
        ("data/held-out/one", leak_back),
        ("data/held-out/one", one_side),
        ("data/ids/one", twins),
        ("data/ids/one", first_twice),
        ("data/ids/one", half_again),
    ],
)
def test_what_is_broken_fails_by_name(
    name: str, fault: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = preflight(prepare(validate(recipe(tmp_path))), families=["data"])
    assert {check.status for check in sound.checks if "enough-held-out" not in check.name} == {"pass"}
    fault(monkeypatch)
    report = preflight(prepare(validate(recipe(tmp_path))), families=["data"])
    assert {check.name: check.status for check in report.checks}[name] == "fail"


def test_weights_that_rounding_holds_still_are_reported(tmp_path: Path) -> None:
    setup = prepare(validate(recipe(tmp_path, grpo__optimizer__learning_rate=1e-7, sft=None)))
    (sound,) = preflight(setup, families=["precision"]).checks
    assert sound.status == "pass"
    setup.policy.model.to(torch.bfloat16)
    (check,) = preflight(setup, families=["precision"]).checks
    assert (check.name, check.status) == ("precision/update/grpo", "fail")
    assert "bfloat16 hides the updates" in check.message


def test_products_that_hide_the_updates_of_a_whole_stage_are_warned_of(tmp_path: Path) -> None:
    model = {"preset": "tiny", "dtype": "bfloat16"}
    for rate, status in ((1e-6, "warn"), (1e-2, "pass")):
        setup = prepare(validate(recipe(tmp_path, model=model, grpo__optimizer__learning_rate=rate, sft=None)))
        (check,) = preflight(setup, families=["precision"]).checks
        assert (check.name, check.status) == ("precision/update/grpo", status)


@pytest.mark.parametrize(("rows_of", "final", "status"), [(12, 256, "warn"), (200, 256, "pass"), (200, 8, "warn")])
def test_too_few_held_out_items_are_told(tmp_path: Path, rows_of: int, final: int, status: str) -> None:
    given = recipe(tmp_path, eval__final_items=final)
    write_rows(tmp_path / "one.jsonl", rows(rows_of))
    (told,) = [
        outcome
        for outcome in preflight(prepare(validate(given)), families=["data"]).checks
        if outcome.name == "data/enough-held-out/one"
    ]
    assert told.status == status
