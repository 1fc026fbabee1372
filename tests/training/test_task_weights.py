"""Weights over tasks in a run: they weigh what they say, stand in the record, and a resumed run goes on with them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from levelhead.api import Result, train
from levelhead.errors import InputError
from levelhead.recipe.load import parse, validate
from levelhead.training.optim import Updater
from levelhead.training.prepare import make_objective, prepare
from small_run import events, metrics, recipe, same_weights, steps

QUICK: dict[str, Any] = {"sft__steps": 1, "eval__final_items": 2, "eval__constant": False, "grpo__audit__first": 2}
CONSTRAINT = {"kind": "constraint", "least": {"two": 0.9}, "eta": 0.5, "kd": 1.0}
MINE = """
from levelhead.objective.task_weights import TaskWeights, WeightsState


class LastAhead(TaskWeights):
    head: float = 2.0

    @property
    def tasks(self):
        return {"two": "settings"}

    def first(self, facts):
        return WeightsState(facts.shares, {"seen": 0})

    def move(self, state, facts, rewards):
        worst = min(rewards, key=rewards.get)
        weights = {task: self.head if task == worst else 1.0 for task in facts.shares}
        return state.after(weights, {"seen": state.memory["seen"] + 1})
"""


class Killed(BaseException):
    """Stands in for a process that dies."""


@pytest.fixture(autouse=True)
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


def run(folder: Path, name: str, **changes: Any) -> Result:
    return train(validate(recipe(folder, **{**QUICK, **changes})), out=folder / name)


def test_a_constraint_moves_the_weights_as_its_formula_says_and_a_killed_run_goes_on_with_them(tmp_path: Path) -> None:
    audited = {**QUICK, "grpo__audit__first": 8}
    given = validate(recipe(tmp_path, **audited, grpo__task_weights=CONSTRAINT, tasks__0__weight=3.0))
    whole = train(given, out=tmp_path / "whole")
    assert parse((tmp_path / "whole" / "recipe.yaml").read_text(encoding="utf-8")) == given
    rows = steps(whole.folder, "grpo")
    integral, before, multiplier = 0.0, None, 0.0
    for row in rows:
        assert row["multiplier/two"] == pytest.approx(multiplier)
        assert row["task_weight/two"] == pytest.approx((0.25 + multiplier) / (1 + multiplier))
        assert row["task_weight/one"] == pytest.approx(0.75 / (1 + multiplier))
        reward = row["reward/two"]
        integral = min(max(integral + 0.5 * (0.9 - reward), 0.0), 10.0)
        fall = 0.0 if before is None else max(before - reward, 0.0)
        multiplier, before = min(max(integral + fall, 0.0), 10.0), reward
    assert rows[-1]["multiplier/two"] > 0.5
    # The audit of signs and coefficients saw each term with the weight in force.
    assert not [event for event in events(whole.folder) if event["code"] == "audited-coefficient"]
    assert [name for name in rows[-1] if name.startswith("audit/policy")]

    real = Updater.step

    def step(self: Updater) -> None:
        if self.steps > 1 and self.done == 4:
            raise Killed
        real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Updater, "step", step)
        with pytest.raises(Killed):
            train(given, out=tmp_path / "killed")
    resumed = train(given, out=tmp_path / "killed", resume=True)
    assert metrics(resumed.folder) == metrics(whole.folder)
    assert same_weights(resumed.model, whole.model)


def test_a_rule_of_ones_own_weighs_the_tasks(tmp_path: Path) -> None:
    own = {"kind": "custom", "path": "mine.py:LastAhead", "settings": {"head": 3.0}}
    rows = steps(run(tmp_path, "own", grpo__task_weights=own).folder, "grpo")
    assert (rows[0]["task_weight/one"], rows[0]["task_weight/two"]) == (0.5, 0.5)
    for row, after in itertools.pairwise(rows):
        behind = "one" if row["reward/one"] < row["reward/two"] else "two"
        assert after[f"task_weight/{behind}"] == pytest.approx(0.75)


def test_fixed_weights_change_no_number_and_add_none(tmp_path: Path) -> None:
    plain = run(tmp_path, "plain", tasks__1__weight=2.0)
    fixed = run(tmp_path, "fixed", tasks__1__weight=2.0, grpo__task_weights={"kind": "fixed"})
    assert same_weights(plain.model, fixed.model)
    assert metrics(plain.folder) == metrics(fixed.folder)
    assert not [name for row in metrics(plain.folder) for name in row if name.startswith(("task_weight", "multiplier"))]


def test_the_objective_counts_a_task_for_its_weight_in_force(tmp_path: Path) -> None:
    given = validate(recipe(tmp_path, **QUICK, grpo__task_weights=CONSTRAINT))
    assert given.grpo is not None
    objective, _ = make_objective(given, given.grpo)
    objective.coefficients.update({"reward/two": 0.1})
    weights = objective.coefficients.task_weights.weights
    assert weights == pytest.approx({"one": 0.5 / 1.4, "two": 0.9 / 1.4})
    other, _ = make_objective(given, given.grpo)
    other.coefficients.load_state_dict(objective.coefficients.state_dict())
    assert other.coefficients.task_weights.weights == weights
    older = {key: value for key, value in objective.coefficients.state_dict().items() if key != "task_weights"}
    fresh, _ = make_objective(given, given.grpo)
    fresh.coefficients.load_state_dict(older)
    assert fresh.coefficients.task_weights.weights == {"one": 0.5, "two": 0.5}


@pytest.mark.parametrize(
    ("task_weights", "said"),
    [
        ({"kind": "constraint", "least": {"tow": 0.3}}, "grpo.task_weights.least: no task is called 'tow'; there are"),
        ({"kind": "constraint", "least": {}}, "grpo.task_weights"),
        ({"kind": "constraint", "least": {"two": 0.3}, "eta": 0}, "grpo.task_weights.*eta"),
        ({"kind": "inverse_loss", "most": {"uno": 1.0}}, "grpo.task_weights.most: no task is called 'uno'"),
        ({"kind": "inverse"}, "grpo.task_weights"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_as_the_recipe_is_read(
    tmp_path: Path, task_weights: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said) as caught:
        validate(recipe(tmp_path, grpo__task_weights=task_weights))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {
                "grpo__task_weights": {"kind": "constraint", "least": {"two": 0.9}},
                "tasks__1__reward_range": [-0.5, 0.5],
            },
            r"grpo.task_weights.least: 'two' gives no more than 0.5, which is below 0.9",
        ),
        (
            {"grpo__task_weights": {"kind": "inverse_loss"}},
            "grpo.task_weights.most: task 'one' declares no most reward",
        ),
        (
            {"grpo__task_weights": {"kind": "custom", "path": "mine.py:LastAhead"}, "tasks__1__name": "three"},
            r"grpo.task_weights.settings: no task is called 'two'; there are one, three",
        ),
        (
            {"grpo__task_weights": {"kind": "custom", "path": "mine.py:Gone"}},
            r"mine.py: there is no class 'Gone'",
        ),
    ],
)
def test_a_rule_that_does_not_fit_the_tasks_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        prepare(validate(recipe(tmp_path, **{**QUICK, **changes})))
