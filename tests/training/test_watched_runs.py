"""Whole runs: sound ones are left alone, and what only a run can break is told of at once."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from levelhead.api import Result, train
from levelhead.records import Decision, StepRecord
from levelhead.training.checkpoint import Checkpoints
from levelhead.training.digest import PARTS, compare
from levelhead.training.grpo import GrpoTrainer
from levelhead.training.optim import Updater
from levelhead.training.stream import PromptStream
from small_run import events, recipe, rows, write_rows

QUICK: dict[str, Any] = {
    "sft__steps": 2,
    "grpo__steps": 3,
    "grpo__batch_size": 6,
    "grpo__audit": {"first": 1},
    "eval__items": 1,
    "eval__final_items": 1,
    "eval__constant": False,
    "log__rollouts_every": 0,
}


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


def run(folder: Path, **changes: Any) -> Result:
    return train(recipe(folder, **{**QUICK, **changes}), out=folder / "run")


def told(result: Result) -> dict[str, dict[str, Any]]:
    return {event["code"]: event for event in events(result.folder)}


SOUND: dict[str, dict[str, Any]] = {
    "half precision, adapters, one batch ahead": {
        "model__dtype": "bfloat16", "model__lora": {"r": 2}, "grpo__async": 1, "grpo__merge": {"kind": "pcgrad"},
    },
    "epochs, other tasks' weights, decay": {
        "grpo__epochs": 2, "tasks__0__weight": 3.0, "tasks__1__kl": 0.0, "grpo__optimizer__weight_decay": 0.1,
        "sft__optimizer__kind": "muon", "grpo__merge": {"kind": "cagrad"}, "grpo__audit": {"first": 4},
    },
    "Muon, audited": {"grpo__optimizer__kind": "muon", "grpo__audit": {"first": 4}},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SOUND))
def test_a_sound_run_is_left_alone(name: str, tmp_path: Path) -> None:
    result = run(tmp_path, **SOUND[name])
    assert told(result) == {}


class Interrupts:
    def before_update(self, record: StepRecord) -> list[Decision]:
        return []

    def after_update(self, record: StepRecord) -> list[Decision]:
        if record.step == 1:
            signal.raise_signal(signal.SIGINT)
        return []


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], dict[str, Any]]:
    """A run that was interrupted after its first update, copied to where a test wants it."""
    folder = tmp_path_factory.mktemp("left")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("levelhead.report.write", lambda _folder: None)
        made = recipe(folder, **QUICK)
        assert train(made, out=folder / "run", observers=[Interrupts()]).outcome == "interrupted"

    def copy(path: Path) -> dict[str, Any]:
        shutil.copytree(folder / "run", path / "run")
        return made

    return copy


def resumed(left: Callable[[Path], dict[str, Any]], folder: Path) -> dict[str, dict[str, Any]]:
    return told(train(left(folder), out=folder / "run", resume=True))


def test_a_resumed_run_is_left_alone(left: Callable[[Path], dict[str, Any]], tmp_path: Path) -> None:
    assert set(resumed(left, tmp_path)) <= {"interrupted"}
    (path,) = (tmp_path / "run" / "checkpoints").glob("step-000005")
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    assert {"weights", "optimizer", "prompts"} <= set(state["digest"]) <= set(PARTS)  # the run may be given more steps


def without_moments(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Updater, "load", lambda self, state: setattr(self, "done", state["updates"]))


def from_the_first_prompt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PromptStream, "load_state_dict", lambda self, state: None)


def schedule_from_zero(patch: pytest.MonkeyPatch) -> None:
    real = Updater.load
    patch.setattr(Updater, "load", lambda self, state: real(self, {**state, "updates": 0}))


def without_guard(patch: pytest.MonkeyPatch) -> None:
    real = GrpoTrainer.load_state_dict

    def load(self: GrpoTrainer, state: Any) -> None:
        real(self, {name: value for name, value in state.items() if name != "trust_region"})

    patch.setattr(GrpoTrainer, "load_state_dict", load)


def other_reference(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Checkpoints, "load_reference", lambda self, policy: policy.keep_reference(trained=False))


def other_weights(patch: pytest.MonkeyPatch) -> None:
    real = Updater.load

    def load(self: Updater, state: Any) -> None:
        real(self, state)
        self.parameters[0].data += 0.01

    patch.setattr(Updater, "load", load)


LOST: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "moments": (without_moments, "optimizer"),
    "place in the data": (from_the_first_prompt, "prompts"),
    "place in the schedule": (schedule_from_zero, "schedule"),
    "guard": (without_guard, "statistics"),
    "reference": (other_reference, "reference"),
    "weights": (other_weights, "weights"),
}


@pytest.mark.parametrize("name", sorted(LOST))
def test_what_a_resumption_loses_is_named(
    name: str, left: Callable[[Path], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose, part = LOST[name]
    lose(monkeypatch)
    events = resumed(left, tmp_path)
    assert events["resume-differs"]["severity"] == "critical"
    assert events["resume-differs"]["evidence"]["parts"] == [part]
    assert PARTS[part][0].en in events["resume-differs"]["message"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], dict[str, Any]]:
    """A run that was done, copied to where a test wants it, and the recipe with a step more."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("levelhead.report.write", lambda _folder: None)
        made = recipe(folder, **QUICK)
        assert train(made, out=folder / "run").outcome == "done"

    def copy(path: Path) -> dict[str, Any]:
        shutil.copytree(folder / "run", path / "run")
        return {**made, "grpo": {**made["grpo"], "steps": made["grpo"]["steps"] + 1}}

    return copy


def extended(finished: Callable[[Path], dict[str, Any]], folder: Path) -> dict[str, dict[str, Any]]:
    return told(train(finished(folder), out=folder / "run", resume=True, accept_changes=["grpo.steps"]))


def test_a_finished_run_that_is_extended_is_left_alone(
    finished: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    assert "resume-differs" not in extended(finished, tmp_path)


@pytest.mark.parametrize("name", ["moments", "place in the data", "reference", "weights"])
def test_what_a_finished_run_loses_when_it_is_extended_is_named(
    name: str, finished: Callable[[Path], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose, part = LOST[name]
    lose(monkeypatch)
    assert extended(finished, tmp_path)["resume-differs"]["evidence"]["parts"] == [part]


def test_what_an_accepted_change_explains_is_no_difference() -> None:
    then, now = {"prompts": "a", "seed": "b"}, {"prompts": "c", "seed": "b"}
    assert compare(then, now, lambda *patterns: "tasks*" in patterns, 1) == []
    (event,) = compare(then, {**now, "seed": "x"}, lambda *patterns: "tasks*" in patterns, 1)
    assert event.evidence["parts"] == ["seed"]
    assert compare({}, now, lambda *_: False, 1) == []  # a checkpoint of before there were any


def test_training_on_what_is_held_out_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from levelhead.tasks.function.task import FunctionTask

    real = FunctionTask.prompts

    def prompts(self: FunctionTask, split: Any, seed: int) -> Iterator[Any]:
        for side in ("eval", "train") if split == "train" else ("eval",):
            yield from real(self, side, seed)  # type: ignore[arg-type]

    monkeypatch.setattr(FunctionTask, "prompts", prompts)
    assert "held-out-trained" in told(run(tmp_path, grpo__steps=4, sft__steps=3))


@pytest.mark.parametrize("replaced", [False, True])
def test_items_of_other_data_are_no_repeats(replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = recipe(tmp_path, **QUICK | {"sft": None, "eval__every": 0})
    assert train(given, out=tmp_path / "run", observers=[Interrupts()]).outcome == "interrupted"
    if replaced:
        write_rows(tmp_path / "one.jsonl", [{**row, "answer": "no."} for row in rows()])
    monkeypatch.setattr(PromptStream, "load_state_dict", lambda self, state: None)  # the order may be another one
    events = told(train(given, out=tmp_path / "run", resume=True, accept_changes=("all",)))
    assert ("item-repeated" in events) is not replaced
