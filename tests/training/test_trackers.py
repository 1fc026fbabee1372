"""Experiment trackers: TensorBoard for real, the others against stand-ins for their libraries."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from levelhead import train
from levelhead.errors import InputError
from levelhead.recipe import validate
from levelhead.training.trackers import COLUMNS, TRACKER_FAILED, check_trackers, tag
from small_run import events, recipe


class Recorder:
    """What a tracker's library was told: calls by name."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.id = "abc123"

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        self.calls.append(("log", (values, step)))

    def define_metric(self, name: str, step_metric: str = "") -> None:
        self.calls.append(("define_metric", (name, step_metric)))

    def finish(self) -> None:
        self.calls.append(("finish", None))

    def named(self, name: str) -> list[Any]:
        return [told for kind, told in self.calls if kind == name]


class Table:
    def __init__(self, columns: list[str], data: list[list[Any]]) -> None:
        self.columns, self.data = columns, data


def library(name: str, monkeypatch: pytest.MonkeyPatch, **attributes: Any) -> Recorder:
    """Put a stand-in for a library of the shape that W&B and Trackio share in its place."""
    run, module = Recorder(), ModuleType(name)
    module.__spec__ = SimpleNamespace()  # type: ignore[assignment]

    def init(**options: Any) -> Recorder:
        run.calls.append(("init", options))
        return run

    vars(module).update({"init": init, "Table": Table, **attributes})
    monkeypatch.setitem(sys.modules, name, module)
    return run


def test_tensorboard_gets_numbers_under_one_prefix_and_rollouts_as_tables(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    result = train(recipe(tmp_path, log={"report_to": ["tensorboard"]}), out=tmp_path / "run")
    events = accumulator.EventAccumulator(str(result.folder / "tensorboard"))
    events.Reload()
    scalars, texts = events.Tags()["scalars"], events.Tags()["tensors"]
    assert {"sft/loss", "grpo/reward", "eval/one/score"} <= set(scalars)
    assert not [name for name in scalars if name.startswith("eval/eval")]
    assert [event.step for event in events.Scalars("sft/loss")] == [1, 2, 3]
    assert events.Scalars("grpo/reward")[0].step == 4
    assert {"grpo/rollouts/text_summary", "eval/rollouts/text_summary"} <= set(texts)
    (table,) = events.Tensors("grpo/rollouts/text_summary")[0].tensor_proto.string_val
    assert table.decode().startswith("| task | prompt | completion | reward")


def test_wandb_gets_numbers_rollouts_and_the_recipe_and_goes_on_with_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = library("wandb", monkeypatch)
    keys = recipe(tmp_path, log={"report_to": ["wandb"], "project": "letters"}, grpo__steps=2)
    train(keys, out=tmp_path / "run")
    (options,) = run.named("init")
    assert (options["project"], options["name"], options["id"]) == ("letters", "small", None)
    assert options["config"]["grpo"]["steps"] == 2
    logged = [values for values, _ in run.named("log")]
    assert [values["levelhead/step"] for values in logged if "grpo/reward" in values] == [4, 5]
    tables = [values["grpo/rollouts"] for values in logged if "grpo/rollouts" in values]
    assert tables[0].columns == list(COLUMNS)
    assert {row[0] for row in tables[0].data} <= {"one", "two"}
    assert run.calls[-1][0] == "finish"
    again = library("wandb", monkeypatch)
    train(keys, out=tmp_path / "run", resume=True)
    assert again.named("init")[0]["id"] == "abc123"


def test_trackio_gets_numbers_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = library("trackio", monkeypatch)
    train(recipe(tmp_path, log={"report_to": ["trackio"]}, grpo__steps=2), out=tmp_path / "run")
    (options,) = run.named("init")
    assert (options["project"], options["name"], options["resume"]) == ("levelhead", "run", "allow")
    assert [step for values, step in run.named("log") if "grpo/reward" in values] == [4, 5]


class Mlflow:
    """A stand-in for MLflow's client."""

    def __init__(self) -> None:
        self.metrics: list[Any] = []
        self.documents: dict[str, Any] = {}
        self.ended: list[str] = []
        self.runs = 0

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        return f"experiment {name}"

    def create_run(self, number: str, run_name: str) -> Any:
        self.runs += 1
        assert (number, run_name) == ("experiment levelhead", "run")
        return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

    def update_run(self, run_id: str, status: str) -> None:
        assert (run_id, status) == ("r1", "RUNNING")

    def log_batch(self, run_id: str, metrics: list[Any]) -> None:
        self.metrics += metrics

    def log_dict(self, run_id: str, document: dict[str, Any], name: str) -> None:
        self.documents[name] = document

    def set_terminated(self, run_id: str) -> None:
        self.ended.append(run_id)


def test_mlflow_gets_numbers_by_step_the_recipe_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Mlflow()
    module, tracking = ModuleType("mlflow"), ModuleType("mlflow.tracking")
    module.__spec__ = SimpleNamespace()  # type: ignore[assignment]
    vars(module)["entities"] = SimpleNamespace(Metric=lambda *values: values)
    vars(tracking)["MlflowClient"] = lambda: client
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.tracking", tracking)
    keys = recipe(tmp_path, log={"report_to": ["mlflow"]}, grpo__steps=2)
    train(keys, out=tmp_path / "run")
    assert [step for name, _, _, step in client.metrics if name == "grpo/reward"] == [4, 5]
    assert client.documents["recipe.json"]["grpo"]["steps"] == 2
    assert client.documents["grpo/rollouts-000004.json"]["columns"] == list(COLUMNS)
    train(keys, out=tmp_path / "run", resume=True)
    assert (client.runs, client.ended) == (1, ["r1", "r1"])


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = library("trackio", monkeypatch)

    def fail(values: dict[str, Any], step: int | None = None) -> None:
        raise ConnectionError("the server is gone")

    monkeypatch.setattr(run, "log", fail)
    result = train(recipe(tmp_path, log={"report_to": ["trackio"]}, grpo__steps=2), out=tmp_path / "run")
    assert result.outcome == "done"
    (event,) = [event for event in events(result.folder) if event["code"] == TRACKER_FAILED]
    assert "trackio is reported to no more: the server is gone" in event["message"]


def test_a_tracker_that_cannot_begin_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise RuntimeError("api_key not configured (no-tty). call wandb.login")

    library("wandb", monkeypatch, init=refuse)
    with pytest.raises(InputError, match=r"log.report_to: wandb: api_key not configured"):
        train(recipe(tmp_path, log={"report_to": ["wandb"]}), out=tmp_path / "run")
    assert train(recipe(tmp_path, grpo__steps=1), out=tmp_path / "run").outcome == "done"


def test_a_package_that_is_not_installed_is_named_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    keys = {"model": {"preset": "tiny"}, "tasks": [{"kind": "math"}]}
    for log, key in (({"report_to": ["mlflow"]}, "log.report_to: mlflow"), ({"wandb": "mine"}, "log.wandb: wandb")):
        with pytest.raises(InputError, match=f"{key} is not installed; pip install"):
            check_trackers(validate({**keys, "log": log}))


def test_a_number_that_has_its_stage_in_front_gets_no_second_one() -> None:
    assert tag("eval", "eval/one/score") == "eval/one/score"
    assert tag("grpo", "reward") == "grpo/reward"
