"""Classes of the user's own, from a file beside the recipe, train, and a resumed run goes on with their state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from levelhead.api import Result, train
from levelhead.errors import InputError
from levelhead.objective.shaping import SHAPERS, LengthPenalty
from levelhead.recipe import Recipe, dump, parse, validate
from levelhead.recipe.objective import CustomShaper
from levelhead.recipe.variants import as_sections, one_of
from levelhead.training.optim import Updater
from levelhead.training.prepare import check_objective
from oracle.textbook import Book, Settings, TaskSettings, UnprovedError
from oracle.textbook.merge import merge_weights
from oracle.textbook.rewards import Moments, shaped
from small_run import metrics, recipe, same_weights, steps

MINE = """
from pydantic import Field

from levelhead.objective.controllers import Controller, ControllerState
from levelhead.objective.shaping import LengthPenalty, Shaper
from levelhead.objective.aggregation import Aggregator


class AgainstTheBest(Shaper):
    needs = frozenset({"parts", "lengths_gk"})
    pull: float = Field(0.5, ge=0)

    def begin(self):
        return {"best": 0.0, "seen": 0}

    def shape(self, batch, state):
        assert set(batch.parts) and batch.lengths_gk.shape == batch.rewards_gk.shape
        best = max(state["best"], float(batch.rewards_gk.max()))
        return batch.rewards_gk - self.pull * best * batch.rewards_gk, {"best": best, "seen": state["seen"] + 1}


class Fixed(LengthPenalty):
    def addition(self, rewards_gk, lengths_gk):
        return -0.1 * lengths_gk


class Misfit(Shaper):
    needs = frozenset({"hearts"})


class TooShort(Shaper):
    def with_budget(self, tokens):
        raise ValueError(f"wants a budget above {tokens}")


class Integral(Controller):
    gain: float = Field(0.1, gt=0)

    def first(self, coef):
        return ControllerState(coef, {"start": coef, "sum": 0.0})

    def move(self, state, measured):
        memory = {**state.memory, "sum": state.memory["sum"] + measured}
        return state.after(memory["start"] + self.gain * memory["sum"], memory)


class Drawn(Aggregator):
    scale = "sum"
    spread: float = Field(0.5, ge=0, lt=1)

    def weights(self, gramian_mm, generator):
        import torch

        return 1 + self.spread * (torch.rand(len(gramian_mm), generator=generator) - 0.5)


class ForKl(Controller):
    controls = frozenset({"kl"})


class Short(Controller):
    def first(self, coef):
        raise ValueError("needs more")
"""
QUICK: dict[str, Any] = {"sft__steps": 1, "eval__final_items": 2, "eval__constant": False, "grpo__audit__first": 0}


class Killed(BaseException):
    """Stands in for a process that dies."""


@pytest.fixture(autouse=True)
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the recipe's data and ``mine.py``, which the command is given in."""
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


def mine(name: str, **settings: Any) -> dict[str, Any]:
    return {"kind": "custom", "path": f"mine.py:{name}", "settings": settings}


def read(folder: Path, **changes: Any) -> Recipe:
    return validate(recipe(folder, **{**QUICK, **changes}))


def killed_and_resumed(given: Recipe, folder: Path) -> Result:
    """Kill a run in its fifth update, two of which make a step, and go on from the last checkpoint."""
    real = Updater.step

    def step(self: Updater) -> None:
        if self.steps > 1 and self.done == 4:
            raise Killed
        real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Updater, "step", step)
        with pytest.raises(Killed):
            train(given, out=folder)
    return train(given, out=folder, resume=True)


def last_state(run: Path) -> Any:
    checkpoint = max((run / "checkpoints").glob("*-*"), key=lambda path: path.stat().st_mtime)
    return torch.load(checkpoint / "training.pt", weights_only=True)["trainer"]


def test_a_shaper_of_ones_own_trains_and_goes_on_with_its_state(tmp_path: Path) -> None:
    shaping = {"length": mine("AgainstTheBest", pull=0.25), "scale": 2.0}
    given = read(tmp_path, tasks__0__shaping=shaping, tasks__1__shaping__length=mine("Fixed"))
    whole = train(given, out=tmp_path / "whole")
    assert parse((tmp_path / "whole" / "recipe.yaml").read_text(encoding="utf-8")) == given
    first = steps(whole.folder, "grpo")[0]
    best = last_state(whole.folder)["advantages"]["one"]["length"]["best"]
    assert 0 < best <= 1
    assert first["reward_shaped/one"] == pytest.approx(2 * (1 - 0.25 * best) * first["reward/one"], abs=0.05)
    assert first["reward_shaped/two"] < first["reward/two"] - 0.1
    resumed = killed_and_resumed(given, tmp_path / "killed")
    assert metrics(resumed.folder) == metrics(whole.folder)
    assert same_weights(resumed.model, whole.model)


@pytest.mark.parametrize(("pull", "seen"), [(0.25, 5), (0.5, 1)])
def test_a_shaper_that_has_changed_begins_anew(tmp_path: Path, pull: float, seen: int) -> None:
    given = read(tmp_path, tasks__0__shaping__length=mine("AgainstTheBest", pull=0.25), grpo__updates_per_batch=1)
    train(given, out=tmp_path / "run")
    changed = read(
        tmp_path,
        tasks__0__shaping__length=mine("AgainstTheBest", pull=pull),
        grpo__updates_per_batch=1,
        grpo__steps=5,
    )
    train(changed, out=tmp_path / "run", resume=True, accept_changes=["all"])
    assert last_state(tmp_path / "run")["advantages"]["one"]["length"]["seen"] == seen


def test_controllers_of_ones_own_train_and_go_on_with_their_state(tmp_path: Path) -> None:
    given = read(
        tmp_path,
        grpo__kl={"coef": 0.0, "controller": mine("Integral", gain=2.0)},
        grpo__entropy={"coef": 0.01, "controller": mine("Integral")},
        tasks__1__kl_controller=mine("Integral", gain=4.0),
    )
    whole = train(given, out=tmp_path / "whole")
    assert parse((tmp_path / "whole" / "recipe.yaml").read_text(encoding="utf-8")) == given
    rows = steps(whole.folder, "grpo")
    sums = {name: sum(row[name] for row in rows[:-1]) for name in ("kl/one", "kl/two", "entropy")}
    assert all(total > 0 for total in sums.values())
    assert rows[0]["kl_coef/one"] == rows[0]["kl_coef/two"] == 0.0
    assert rows[-1]["kl_coef/one"] == pytest.approx(2 * sums["kl/one"])
    assert rows[-1]["kl_coef/two"] == pytest.approx(4 * sums["kl/two"])
    assert rows[-1]["entropy_coef"] == pytest.approx(0.01 + 0.1 * sums["entropy"])
    assert last_state(whole.folder)["coefficients"]["kl/one"]["memory"]["sum"] > sums["kl/one"]
    resumed = killed_and_resumed(given, tmp_path / "killed")
    assert metrics(resumed.folder) == metrics(whole.folder)
    assert same_weights(resumed.model, whole.model)


def test_an_aggregator_of_ones_own_trains_and_goes_on_with_its_generator(tmp_path: Path) -> None:
    given = read(tmp_path, grpo__merge={**mine("Drawn", spread=0.25), "memory": "low"}, grpo__audit__first=2)
    whole = train(given, out=tmp_path / "whole")
    assert parse((tmp_path / "whole" / "recipe.yaml").read_text(encoding="utf-8")) == given
    weights = [row["merge/weight/one"] for row in steps(whole.folder, "grpo")]
    assert len(set(weights)) == len(weights)
    assert all(0.875 <= weight <= 1.125 for weight in weights)
    resumed = killed_and_resumed(given, tmp_path / "killed")
    assert metrics(resumed.folder) == metrics(whole.folder)
    assert same_weights(resumed.model, whole.model)


class Added(LengthPenalty):
    name = "added"
    warmth: float = 0.5
    """How warm."""


def test_a_registered_shaper_is_a_kind_with_its_settings_as_keys() -> None:
    from pydantic import TypeAdapter

    section = TypeAdapter(one_of(as_sections({**SHAPERS, "added": Added}).values(), CustomShaper))
    made = section.validate_python({"kind": "added", "warmth": 2})
    assert isinstance(made, Added)
    assert made.model_dump() == {"kind": "added", "warmth": 2.0}
    schema = section.json_schema()["$defs"]["Added"]["properties"]
    assert (schema["warmth"]["description"], schema["kind"]["const"]) == ("How warm.", "added")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (mine("Absent"), r"mine.py: there is no class 'Absent'; it defines: AgainstTheBest, Fixed, Misfit"),
        ({**mine("Fixed"), "path": "gone.py:Fixed"}, r"gone.py: no such file \(tasks.1.shaping.length.path, seen from"),
        (mine("AgainstTheBest", pull=-1), r"mine.py:AgainstTheBest: tasks.1.shaping.length.settings.pull must be at"),
        (mine("Misfit"), r"tasks: two: shaping: shaper Misfit needs 'hearts'; a shaper may need lengths_gk or parts"),
        (mine("TooShort"), r"tasks: two: shaping: wants a budget above 6"),
    ],
)
def test_a_shaper_that_does_not_fit_is_told_in_one_line(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        check_objective(read(tmp_path, tasks__1__shaping__length=change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        ("grpo__kl__controller", mine("Absent"), r"mine.py: there is no class 'Absent'; it defines: "),
        ("grpo__kl__controller", mine("Fixed"), r"that derives from .*Controller \(grpo.kl.controller.path\)"),
        ("tasks__1__kl_controller", mine("Integral", gain=0), r"tasks.1.kl_controller.settings.gain must be above 0"),
        ("tasks__1__kl_controller", mine("Short"), r"grpo: the KL controller of task 'two': needs more"),
        ("grpo__entropy__controller", mine("Short"), r"grpo: the entropy controller: needs more"),
        (
            "grpo__entropy__controller",
            mine("ForKl"),
            r"mine.py:ForKl: moves the coefficient of kl, not of entropy \(grpo.entropy.controller.path\)",
        ),
    ],
)
def test_a_controller_that_does_not_fit_is_told_in_one_line(
    tmp_path: Path, key: str, change: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        check_objective(read(tmp_path, **{key: change}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (mine("Absent"), r"mine.py: there is no class 'Absent'; it defines: "),
        (mine("Integral"), r"that derives from .*Aggregator \(grpo.merge.path\)"),
        (mine("Drawn", spread=1), r"mine.py:Drawn: grpo.merge.settings.spread must be below 1, got 1"),
        ({**mine("Drawn"), "c": 0.1}, r"unknown key 'grpo.merge.c'"),
        ({**mine("Drawn"), "switch_to": "mean"}, r"grpo.merge.switch_to: .*'cagrad'"),
    ],
)
def test_an_aggregator_that_does_not_fit_is_told_in_one_line(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        check_objective(read(tmp_path, grpo__merge=change))
    assert "\n" not in str(caught.value)


def test_the_textbook_has_no_page_for_an_aggregator_of_ones_own(tmp_path: Path) -> None:
    given = read(tmp_path, grpo__merge=mine("Drawn")).grpo
    assert given is not None
    with pytest.raises(UnprovedError, match=r"grpo.merge.kind: custom"):
        merge_weights(given.merge, given.merge.kind, np.eye(2))


@pytest.mark.parametrize(("term", "kind"), [("kl", "entropy_target"), ("entropy", "band")])
def test_a_controller_of_another_term_is_no_kind_of_this_one(tmp_path: Path, term: str, kind: str) -> None:
    with pytest.raises(InputError, match=f"grpo.{term}.controller.kind: must be one of .*{kind}"):
        read(tmp_path, **{f"grpo__{term}__controller": {"kind": kind, "target": 1.0}})


@pytest.mark.parametrize("term", ["kl", "entropy"])
def test_the_textbook_has_no_page_for_a_controller_of_ones_own(tmp_path: Path, term: str) -> None:
    given = read(tmp_path, **{f"grpo__{term}": {"coef": 0.1, "controller": mine("Integral")}}).grpo
    assert given is not None
    book = Book(Settings(given, {"one": TaskSettings()}))
    book._measured |= {"kl/one": [0.1], "entropy": [1.0]}
    with pytest.raises(UnprovedError, match=rf"grpo.{term}.controller.kind: custom"):
        book.close()


def test_a_recipe_with_a_shaper_of_ones_own_is_read_where_the_file_is_not(tmp_path: Path) -> None:
    given = read(tmp_path, tasks__0__shaping__length={**mine("Fixed"), "path": "gone.py:Fixed"})
    assert parse(dump(given)) == given


def test_the_textbook_has_no_page_for_a_shaper_of_ones_own(tmp_path: Path) -> None:
    shaping = read(tmp_path, tasks__0__shaping__length=mine("Fixed")).tasks[0].shaping
    with pytest.raises(UnprovedError, match=r"tasks\[\].shaping.length.kind: custom"):
        shaped(shaping, 8, [[0.0, 1.0]], [[]], Moments())


def test_moments_of_an_older_checkpoint_are_those_of_the_z_score(tmp_path: Path) -> None:
    from levelhead.training.prepare import make_objective

    given = read(tmp_path, tasks__0__shaping__zscore={})
    assert given.grpo is not None
    _, estimator = make_objective(given, given.grpo)
    estimator.load_state_dict({"one": {"mean": 1.0, "variance": 4.0, "weight": 0.5}})
    assert estimator.state_dict() == {"one": {"zscore": {"mean": 1.0, "variance": 4.0, "weight": 0.5}}}
