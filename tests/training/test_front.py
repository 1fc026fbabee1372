"""The front of a run: what is kept, what a killed run goes on with, and which checkpoint is the best."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from levelhead.api import Result, train
from levelhead.cli.main import app
from levelhead.errors import InputError
from levelhead.recipe.load import validate
from levelhead.records import Group, Prompt, Rollout, Score, Turn
from levelhead.training.checkpoint import Checkpoints
from levelhead.training.checkpoint_files import read_state
from levelhead.training.evaluate import TaskResult
from levelhead.training.front import objectives_of
from levelhead.training.pareto import dominates, hypervolume
from small_run import metrics, recipe, same_weights

STEPS = 4


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


def keys(folder: Path, **changes: Any) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    common = {"eval__every": 1, "grpo__steps": STEPS, "grpo__optimizer__learning_rate": 0.02, "checkpoint__front": 2}
    return recipe(folder, **{**common, "eval__items": 4, "eval__final_items": 4, "checkpoint__every": 2, **changes})


def front(run: Path) -> dict[str, Any]:
    page: dict[str, Any] = json.loads((run / "pareto.json").read_text(encoding="utf-8"))
    return page


def members(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints" / "front").iterdir())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("front")
    return train(keys(folder), out=folder / "run")


def test_every_evaluation_adds_a_point_and_the_page_agrees_with_itself(undisturbed: Result) -> None:
    page = front(undisturbed.folder)
    assert page["objectives"] == ["one", "two"]
    assert [(row["stage"], row["step"]) for row in page["points"]] == [
        ("start", 0), ("sft", 3), *(("grpo", 3 + step) for step in range(1, STEPS + 1)),
    ]  # fmt: skip
    rows = page["points"]
    for row in rows:
        beaten = any(dominates(other["values"], row["values"]) for other in rows)
        copied = any(other["values"] == row["values"] for other in rows[: rows.index(row)])
        assert row["front"] is not (beaten or copied)
    assert page["hypervolume"] == pytest.approx(hypervolume([row["values"] for row in rows], page["reference"]))
    volumes = [row["hypervolume"] for row in rows]
    assert volumes == sorted(volumes)
    lines = [row for row in metrics(undisturbed.folder) if row["stage"] == "eval"]
    assert [row["values"] for row in page["points"]] == [
        [pytest.approx(line["eval/one/balanced"]), pytest.approx(line["eval/two/balanced"])] for line in lines
    ]


def test_the_folder_holds_the_checkpoints_that_the_page_names_and_no_more_than_asked(undisturbed: Result) -> None:
    rows = {row["step"]: row for row in front(undisturbed.folder)["points"] if "weights" in row}
    assert 1 <= len(rows) <= 2
    assert members(undisturbed.folder) == [f"step-{step:06d}" for step in sorted(rows)]
    for row in rows.values():
        assert row["front"]
        folder = undisturbed.folder / row["weights"]
        state = read_state(folder)
        assert state.step + {"sft": 0, "grpo": 3}[state.stage] == row["step"]
        assert load_file(folder / "model.safetensors")


def test_a_front_changes_no_weight_and_no_metric_of_a_run(tmp_path: Path, undisturbed: Result) -> None:
    plain = train(keys(tmp_path, checkpoint__front=0), out=tmp_path / "run")
    assert same_weights(plain.model, undisturbed.model)
    assert metrics(plain.folder) == metrics(undisturbed.folder)
    assert not (plain.folder / "checkpoints" / "front").exists()
    best = [load_file(run.folder / "checkpoints" / "best" / "model.safetensors") for run in (plain, undisturbed)]
    assert all((best[0][name] == best[1][name]).all() for name in best[0])


def test_the_reference_is_the_recipes_else_the_least_reward_else_the_first_evaluation(
    tmp_path: Path, undisturbed: Result
) -> None:
    first = front(undisturbed.folder)
    assert first["reference"] == first["points"][0]["values"]
    stated = {"grpo__steps": 1, "eval__reference": {"one": -2.0}, "tasks__1__reward_range": [-0.75, 0.5]}
    assert front(train(keys(tmp_path, **stated), out=tmp_path / "run").folder)["reference"] == [-2.0, -0.75]
    with pytest.raises(InputError, match=r"eval.reference: no task is called 'tow'; there are one, two"):
        validate(recipe(tmp_path, eval__reference={"tow": 0.0}))


class KilledError(Exception):
    """The process ends here."""


def kill(monkeypatch: pytest.MonkeyPatch, method: str, call: int, *, after: bool) -> None:
    real: Callable[..., Any] = getattr(Checkpoints, method)
    count = 0

    def counted(self: Checkpoints, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == call and not after:
            raise KilledError
        made = real(self, *args, **kwargs)
        if count == call:
            raise KilledError
        return made

    monkeypatch.setattr(Checkpoints, method, counted)


@pytest.mark.parametrize(
    ("method", "call", "after"),
    [
        ("save_front", 2, True),  # written, and in no step checkpoint's state
        ("save", 2, True),  # the step checkpoint is whole, and what left the front is still there
    ],
)
def test_a_killed_run_goes_on_to_the_same_front(
    method: str, call: int, after: bool, tmp_path: Path, undisturbed: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = keys(tmp_path)
    with monkeypatch.context() as patch:
        kill(patch, method, call, after=after)
        with pytest.raises(KilledError):
            train(made, out=tmp_path / "run")
    done = train(made, out=tmp_path / "run", resume=True)
    assert done.outcome == "done"
    assert front(done.folder) == front(undisturbed.folder)
    assert members(done.folder) == members(undisturbed.folder)
    assert same_weights(done.model, undisturbed.model)
    for name in members(done.folder):
        one, other = (
            load_file(run / "checkpoints/front" / name / "model.safetensors")
            for run in (done.folder, undisturbed.folder)
        )
        assert all((one[key] == other[key]).all() for key in one)


def test_going_back_to_an_earlier_checkpoint_forgets_what_came_after(tmp_path: Path, undisturbed: Result) -> None:
    made = keys(tmp_path, checkpoint__keep_last=4)
    first = train(made, out=tmp_path / "run")
    expected = front(first.folder)
    again = train(made, out=tmp_path / "run", resume=True, resume_from="step-000005")
    page = front(again.folder)
    assert [row["values"] for row in page["points"]] == [row["values"] for row in expected["points"]]
    assert set(members(again.folder)) == {Path(row["weights"]).name for row in page["points"] if "weights" in row}


@pytest.mark.parametrize(
    ("best", "score"),
    [
        ({"by": "task", "task": "two"}, lambda values: values[1]),
        ({"by": "weights", "weights": {"one": 3.0, "two": 1.0}}, lambda values: (3 * values[0] + values[1]) / 4),
    ],
)
def test_the_best_checkpoint_is_the_one_that_was_asked_for(
    best: Any, score: Callable[[Any], float], tmp_path: Path
) -> None:
    done = train(keys(tmp_path, checkpoint__best=best), out=tmp_path / "run")
    rows = front(done.folder)["points"]
    state = read_state(done.folder / "checkpoints" / "best")
    assert state.best == pytest.approx(max(score(row["values"]) for row in rows))
    kept = done.summary["best"]
    offset = {"start": 0, "sft": 0, "grpo": 3}[kept["stage"]]
    (row,) = [row for row in rows if (row["stage"], row["step"]) == (kept["stage"], kept["step"] + offset)]
    assert score(row["values"]) == pytest.approx(state.best)


def test_the_best_by_knee_is_the_knee_of_the_checkpoints_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = keys(tmp_path, checkpoint__best={"by": "knee"}, checkpoint__front=4)
    done = train(made, out=tmp_path / "run")
    page = front(done.folder)
    state = read_state(done.folder / "checkpoints" / "best")
    assert state.step + {"sft": 0, "grpo": 3}[state.stage] == page["knee"]
    again = tmp_path / "again"
    with monkeypatch.context() as patch:
        kill(patch, "save", 2, after=False)
        with pytest.raises(KilledError):
            train(made, out=again)
    train(made, out=again, resume=True)
    assert read_state(again / "checkpoints" / "best").step == state.step
    assert front(again) == page


@pytest.mark.parametrize(
    ("checkpoint", "said"),
    [
        ({"best": {"by": "task"}}, "by: task needs task"),
        ({"best": {"by": "task", "task": "three"}}, "no task is called 'three'; there are one, two"),
        ({"best": {"by": "weights", "weights": {"one": 0.0}}}, "one must be above it"),
        ({"best": {"by": "weights", "weights": {"uno": 1.0}}}, "no task is called 'uno'"),
        ({"best": {"by": "balanced", "task": "one"}}, "task is for by: task alone"),
        ({"best": {"by": "knee"}}, "set front to 2 or more"),
    ],
)
def test_a_best_that_makes_no_sense_is_refused(checkpoint: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        validate({**recipe(tmp_path), "checkpoint": checkpoint})


def result(*parts: dict[str, float]) -> TaskResult:
    prompt = Prompt("p", "t", ({"role": "user", "content": "?"},))
    turn = Turn((1,), (2,), (0.0,), (0.0,), "stop")
    groups = [Group(prompt, (Rollout(prompt, (turn,), Score(sum(part.values()), part)),)) for part in parts]
    return TaskResult(0.0, 0.0, 1.0, 1.0, len(parts), groups=groups, selection=0.5, selection_se=0.1, common=2)


def test_one_task_with_named_parts_is_pulled_between_them() -> None:
    points = objectives_of({"t": result({"right": 1.0, "short": 0.0}, {"right": 0.0, "short": 0.5}, {"right": 9.0})})
    assert {name: estimate.score for name, estimate in points.items()} == {"right": 0.5, "short": 0.25}
    assert points["right"].se == pytest.approx(0.5)
    assert set(objectives_of({"t": result({"right": 1.0}, {"right": 0.0})})) == {"right"}
    both = objectives_of({"t": result({"a": 1.0}), "u": result({"b": 1.0})})
    assert {name: (one.score, one.se) for name, one in both.items()} == {"t": (0.5, 0.1), "u": (0.5, 0.1)}


def test_a_front_is_scored_again_as_the_run_scored_it(tmp_path: Path) -> None:
    """Greedy answers of a policy that draws them can make one point of a whole front."""
    done = train(keys(tmp_path, eval__sampling={"max_new_tokens": 4, "temperature": 1.0}), out=tmp_path / "run")
    place = str(done.folder)
    said = CliRunner().invoke(app, ["eval", f"{place}/recipe.yaml", "--checkpoint", place, "--front", "--json"])
    assert said.exit_code == 0, said.output
    own = {row["step"]: row["values"] for row in front(done.folder)["points"]}
    again = {row["step"]: row["values"] for row in json.loads(said.stdout)["points"]}
    assert len(again) == 2
    assert again == {step: pytest.approx(own[step]) for step in again}


def test_the_command_line_scores_a_front(tmp_path: Path, undisturbed: Result) -> None:
    shutil.copytree(undisturbed.folder, tmp_path / "run")
    path = str(tmp_path / "run" / "recipe.yaml")
    said = CliRunner().invoke(app, ["eval", path, "--checkpoint", str(tmp_path / "run"), "--front", "--json"])
    assert said.exit_code == 0, said.output
    page = json.loads(said.stdout)
    assert [Path(row["weights"]).name for row in page["points"]] == members(undisturbed.folder)
    assert any(row["front"] for row in page["points"])
    shown = CliRunner().invoke(app, ["eval", path, "--checkpoint", str(tmp_path / "run"), "--front"])
    assert "Hypervolume" in shown.stdout
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    gone = CliRunner().invoke(app, ["eval", path, "--checkpoint", str(tmp_path / "run"), "--front"])
    assert isinstance(gone.exception, InputError)
    assert "no checkpoints of a front" in str(gone.exception)
