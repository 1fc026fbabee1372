"""A run goes on with another recipe only where that is possible, accepted, and written down."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from levelhead.api import Result, train
from levelhead.errors import InputError
from levelhead.recipe.training import Optimizer
from levelhead.training.optim import Updater
from small_run import events, metrics, put, recipe, same_weights, steps, write_rows


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


def made(folder: Path, **changes: Any) -> dict[str, Any]:
    """A recipe of two GRPO steps whose files are named relative to the current folder."""
    given = recipe(folder, sft=None, grpo__steps=2, grpo__optimizer__schedule="constant")
    for task, name, reward in zip(given["tasks"], ("one", "two"), ("parity", "spread"), strict=True):
        task["path"], task["rewards"] = f"{name}.jsonl", [f"rewards.py:{reward}"]
    for key, value in changes.items():
        put(given, key.split("__"), value)
    return given


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a whole run, its data and its rewards."""
    folder = tmp_path_factory.mktemp("changed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train(made(folder), out="run")
    return folder


@pytest.fixture
def place(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, which is the current one."""
    folder = Path(shutil.copytree(done, tmp_path / "place"))
    monkeypatch.chdir(folder)
    return folder


def resume(place: Path, *accept: str, start: str | None = None, **changes: Any) -> Result:
    return train(made(place, **changes), out="run", resume=True, accept_changes=accept, resume_from=start)


def refused(place: Path, *accept: str, **changes: Any) -> str:
    before = {path: path.read_bytes() for path in (place / "run").rglob("*") if path.is_file()}
    with pytest.raises(InputError) as error:
        resume(place, *accept, **changes)
    assert before == {path: path.read_bytes() for path in (place / "run").rglob("*") if path.is_file()}
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_same_recipe_is_no_change(place: Path) -> None:
    assert resume(place).outcome == "done"
    assert sorted(path.name for path in (place / "run").glob("*.yaml")) == ["recipe.yaml"]
    assert events(place / "run") == []


def test_a_changed_recipe_is_refused_with_its_keys(place: Path) -> None:
    said = refused(place, grpo__kl__coef=0.1, grpo__optimizer__learning_rate=0.5, log__rollouts=2)
    assert "grpo.kl.coef (0.05 -> 0.1), grpo.optimizer.learning_rate (0.003 -> 0.5), log.rollouts (3 -> 2)" in said
    assert "--accept-changes grpo.kl.coef,grpo.optimizer.learning_rate,log.rollouts" in said
    said = refused(place, "grpo.kl.coef", "grpo.optimizer", grpo__kl__coef=0.1, log__rollouts=2)
    assert "grpo.kl.coef" not in said
    assert "log.rollouts (3 -> 2)" in said


def test_more_steps_are_asked_for_kindly_and_given(place: Path) -> None:
    said = refused(place, grpo__steps=4)
    assert said.endswith("grpo.steps was 2 and is 4 now: to go on for longer, add --accept-changes grpo.steps")
    before = (place / "run" / "recipe.yaml").read_bytes()
    result = resume(place, "grpo.steps", grpo__steps=4)
    assert result.outcome == "done"
    assert [row["step"] for row in steps(place / "run", "grpo")] == [1, 2, 3, 4]
    assert (place / "run" / "recipe.yaml").read_bytes() == before
    text = (place / "run" / "recipe-2.yaml").read_text(encoding="utf-8")
    assert text.startswith("# Accepted after step 2 of grpo:\n#   grpo.steps (2 -> 4)\n")
    assert yaml.safe_load(text)["grpo"]["steps"] == 4
    (event,) = (event for event in events(place / "run") if event["code"] == "recipe-changed")
    assert event["evidence"] == {"file": "recipe-2.yaml", "keys": ["grpo.steps"]}
    assert resume(place, grpo__steps=4).outcome == "done"
    assert "grpo.steps was 4 and is 6 now" in refused(place, grpo__steps=6)


def test_a_longer_run_is_the_same_as_one_that_was_long_from_the_start(place: Path) -> None:
    longer = resume(place, "all", grpo__steps=3)
    wanted = train(made(place, grpo__steps=3), out="other")
    assert same_weights(longer.model, wanted.model)
    assert steps(place / "run", "grpo") == steps(place / "other", "grpo")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model__tiny__layers": 3}, "model.tiny.layers (2 -> 3): a checkpoint holds the weights of its own model"),
        ({"model__lora": {"r": 2}}, "model.lora (null -> "),
        ({"seed": 4}, "seed (3 -> 4): every draw so far came from it"),
        ({"grpo__steps": 1}, "grpo.steps (2 -> 1): 2 steps are done"),
        ({"tasks__1__name": "three"}, "tasks.1.name"),
        ({"grpo__curriculum": {"kind": "learnability"}}, "grpo.curriculum.kind"),
        ({"sft": {"steps": 2}}, "sft (null -> "),
        ({"grpo": None, "sft": {"steps": 2}}, "grpo ("),
        ({"model__chat_template": "rewards.py"}, "a checkpoint holds its own"),
    ],
)
def test_what_cannot_change_says_so_even_if_accepted(place: Path, changes: dict[str, Any], why: str) -> None:
    said = refused(place, "all", **changes)
    assert "this cannot change on the way" in said
    assert why in said


def test_a_kl_penalty_needs_the_reference_that_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train(made(tmp_path, grpo__kl__coef=0.0, grpo__steps=1), out="run")
    said = refused(tmp_path, "all", grpo__steps=2)
    assert "grpo.kl.coef (0.0 -> 0.05): the run has kept no reference to measure it from" in said


def test_changed_data_and_changed_rewards_are_changed_keys(place: Path) -> None:
    def other(folder: Path) -> None:
        write_rows(folder / "one.jsonl", [{"prompt": f"other {n}?", "answer": "x."} for n in range(12)])
        with (folder / "rewards.py").open("a", encoding="utf-8") as file:
            file.write("# another version\n")

    given = made(place)
    other(place)
    with pytest.raises(InputError) as error:
        train(given, out="run", resume=True)
    said = str(error.value)
    for key in ("tasks.0.path", "tasks.0.rewards.0", "tasks.1.rewards.0"):
        assert f"{key} (contents: " in said
    assert "tasks.1.path" not in said
    given["grpo"]["steps"] = 3
    train(given, out="run", resume=True, accept_changes=["tasks", "grpo.steps"])
    saved = [
        json.loads((place / "run" / name).read_text(encoding="utf-8")) for name in ("inputs.json", "inputs-2.json")
    ]
    assert {key for key in saved[0] if saved[0][key] != saved[1][key]} == {
        "tasks.0.path",
        "tasks.0.rewards.0",
        "tasks.1.rewards.0",
    }


def test_accepted_coefficients_and_mergers_are_in_force(place: Path) -> None:
    changes = {"grpo__steps": 3, "grpo__kl__coef": 0.2, "grpo__entropy__coef": 0.5, "grpo__merge": {"kind": "pcgrad"}}
    resume(place, "all", **changes)
    before, after = steps(place / "run", "grpo")[-2:]
    assert (before["kl_coef/one"], after["kl_coef/one"]) == (0.05, 0.2)
    assert (before["entropy_coef"], after["entropy_coef"]) == (0.01, 0.5)
    saved = torch.load(place / "run" / "checkpoints" / "step-000003" / "training.pt", weights_only=True)
    assert saved["trainer"]["merger"]["kind"] == "pcgrad"


def test_an_optimizer_keeps_its_moments_and_takes_the_recipes_settings() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    old = Updater([weight], Optimizer(), 5)
    weight.grad = torch.ones(3)
    old.step()
    new = Updater([weight], Optimizer(betas=(0.5, 0.6), eps=1e-4, weight_decay=0.1), 5)
    new.load(old.state_dict())
    (group,) = new.optimizer.param_groups
    assert (group["betas"], group["eps"], group["weight_decay"], new.done) == ((0.5, 0.6), 1e-4, 0.1, 1)
    assert torch.equal(new.optimizer.state[weight]["exp_avg"], old.optimizer.state[weight]["exp_avg"])


class Killed(BaseException):
    """Stands in for a process that dies."""


def test_a_change_holds_though_the_run_died_before_its_next_checkpoint(place: Path) -> None:
    changes = {"grpo__steps": 4, "grpo__kl__coef": 0.2, "checkpoint__every": 2}
    wanted = shutil.copytree(place / "run", place / "wanted")
    undisturbed = train(made(place, **changes), out=wanted, resume=True, accept_changes=["all"])
    real = Updater.step

    def die(self: Updater) -> None:
        if self.done == 7:  # the last update of step 4
            raise Killed
        real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Updater, "step", die)
        with pytest.raises(Killed):
            resume(place, "all", **changes)
    shutil.rmtree(place / "run" / "checkpoints" / "step-000003", ignore_errors=True)
    resumed = resume(place, **changes)
    assert same_weights(resumed.model, undisturbed.model)
    assert metrics(place / "run") == metrics(wanted)
    assert [event["code"] for event in events(place / "run")].count("recipe-changed") == 1


def test_a_run_that_died_before_its_first_checkpoint_asks_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def die(_: Updater) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Updater, "step", die)
        with pytest.raises(Killed):
            train(made(tmp_path), out="run")
    assert "grpo.batch_size (12 -> 24)" in refused(tmp_path, grpo__batch_size=24)
    assert resume(tmp_path, "all", model__tiny__layers=1, grpo__steps=1).outcome == "done"
    assert (tmp_path / "run" / "recipe-2.yaml").is_file()
