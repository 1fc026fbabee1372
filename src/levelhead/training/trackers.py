"""Experiment trackers that a run reports to: TensorBoard, Weights & Biases, Trackio and MLflow."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelhead.errors import InputError, first_line
from levelhead.message import Message
from levelhead.recipe import Recipe, plain
from levelhead.records import Event, StepRecord

TRACKER_FAILED = "tracker-failed"
"""Code of the event that a tracker raised an error and is left out from there on."""
FAILED = Message(
    "{name} is reported to no more: {reason}; metrics.jsonl goes on",
    "不再向 {name} 上报：{reason}；metrics.jsonl 照常记录",
)
COLUMNS = ("task", "prompt", "completion", "reward", "advantage", "parts", "finish")
"""Columns of a table of rollouts."""
_STEP = "levelhead/step"
_IDS = "trackers.json"
_LONGEST = 2000
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Tracker:
    """One place that a run's numbers and rollouts are sent to.

    Attributes:
        numbers: Takes the numbers of a step, by name, and the step.
        table: Takes a name, rows under :data:`COLUMNS`, and the step.
        close: Sends what waits, and lets go.
    """

    numbers: Callable[[Mapping[str, float], int], object]
    table: Callable[[str, list[list[Any]], int], object]
    close: Callable[[], object]


def _tensorboard(recipe: Recipe, folder: Path, ids: dict[str, str]) -> Tracker:  # noqa: ARG001
    """Event files in ``tensorboard/`` of the run; a table of rollouts is a text in Markdown."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"))

    def numbers(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    def table(name: str, rows: list[list[Any]], step: int) -> None:
        lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
        writer.add_text(name, "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines), step)

    return Tracker(numbers, table, writer.close)


def _wandb(recipe: Recipe, folder: Path, ids: dict[str, str]) -> Tracker:
    """A Weights & Biases run; one that is resumed goes on."""
    import wandb

    project, number = recipe.log.wandb or recipe.log.project, ids.get("wandb")
    options = {"name": recipe.name, "config": plain(recipe), "dir": str(folder), "id": number, "resume": "allow"}
    run: Any = wandb.init(project=project, **options)
    # Steps are a number of their own: those of a resumed run begin before the last one that was logged.
    run.define_metric(_STEP)
    run.define_metric("*", step_metric=_STEP)
    ids["wandb"] = str(run.id)
    return Tracker(
        lambda values, step: run.log({**values, _STEP: step}),
        lambda name, rows, step: run.log({name: wandb.Table(columns=list(COLUMNS), data=rows), _STEP: step}),
        run.finish,
    )


def _trackio(recipe: Recipe, folder: Path, ids: dict[str, str]) -> Tracker:
    """A Trackio run, kept on this machine unless Trackio is told otherwise; one that is resumed goes on by its name."""
    import trackio

    name = ids.setdefault("trackio", folder.resolve().name)
    run: Any = trackio.init(project=recipe.log.project, name=name, config=plain(recipe), resume="allow", embed=False)
    return Tracker(
        lambda values, step: run.log(dict(values), step=step),
        lambda name, rows, step: run.log({name: trackio.Table(columns=list(COLUMNS), data=rows)}, step=step),
        run.finish,
    )


def _mlflow(recipe: Recipe, folder: Path, ids: dict[str, str]) -> Tracker:
    """A run of an MLflow experiment, at the ``MLFLOW_TRACKING_URI``; one that is resumed goes on."""
    import mlflow
    from mlflow.tracking import MlflowClient

    client: Any = MlflowClient()
    experiment = client.get_experiment_by_name(recipe.log.project)
    number = experiment.experiment_id if experiment else client.create_experiment(recipe.log.project)
    if "mlflow" in ids:
        client.update_run(ids["mlflow"], status="RUNNING")
    else:
        ids["mlflow"] = str(client.create_run(number, run_name=folder.resolve().name).info.run_id)
        client.log_dict(ids["mlflow"], plain(recipe), "recipe.json")
    run = ids["mlflow"]

    def numbers(values: Mapping[str, float], step: int) -> None:
        now, metric = int(time.time() * 1000), mlflow.entities.Metric
        names = {name: re.sub(r"[^\w\-. :/]", "_", name) for name in values}  # without what MLflow forbids in one
        client.log_batch(run, metrics=[metric(names[name], value, now, step) for name, value in values.items()])

    def table(name: str, rows: list[list[Any]], step: int) -> None:
        client.log_dict(run, {"columns": list(COLUMNS), "data": rows}, f"{name}-{step:06d}.json")

    return Tracker(numbers, table, lambda: client.set_terminated(run))


_TRACKERS: Mapping[str, Callable[[Recipe, Path, dict[str, str]], Tracker]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "trackio": _trackio,
    "mlflow": _mlflow,
}


class Trackers:
    """All trackers of a run; one that raises is left out from there on, and the run goes on.

    Args:
        trackers: By name.
    """

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)
        self._events: list[Event] = []

    def write(self, record: StepRecord, offset: int) -> None:
        """Send the numbers of a record; ``offset`` is the number of steps of the stages before."""
        values = {tag(record.stage, name): value for name, value in {**record.values, **record.timings}.items()}
        self._each(record.step, lambda tracker: tracker.numbers(values, offset + record.step))

    def rollouts(self, rows: Rows, offset: int) -> None:
        """Send rollouts as they stand in ``rollouts/`` of the run."""
        if rows:
            step, name = int(rows[0]["step"]), f"{rows[0]['stage']}/rollouts"
            cells = [[_value(row.get(column)) for column in COLUMNS] for row in rows]
            self._each(step, lambda tracker: tracker.table(name, cells, offset + step))

    def drain_events(self) -> list[Event]:
        """Return, and forget, an event for each tracker that was left out since the last call."""
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Send what waits, and let go of all."""
        self._each(0, lambda tracker: tracker.close())
        self._trackers.clear()

    def _each(self, step: int, work: Callable[[Tracker], object]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                work(tracker)
            except Exception as error:
                # Hours of training are worth more than their curve in one more place.
                self._trackers.pop(name)
                self._events.append(
                    Event(step, TRACKER_FAILED, "warning", FAILED(name=name, reason=first_line(error)[:200]))
                )


def tag(stage: str, name: str) -> str:
    """Return the name of a number at a tracker: behind its stage, unless it has that in front already."""
    return name if name.startswith(f"{stage}/") else f"{stage}/{name}"


def check_trackers(recipe: Recipe) -> None:
    """Check that the packages of the trackers are there, before anything is written; imports none of them.

    Each is called as its tracker; MLflow's client alone (``mlflow-skinny``) is enough.

    Raises:
        InputError: One is not installed.
    """
    for name in recipe.log.trackers():
        if not _installed(name):
            key = f"log.{name}" if name not in recipe.log.report_to else "log.report_to"
            raise InputError(f"{key}: {name} is not installed; pip install {name}, or remove the key")


def make_trackers(recipe: Recipe, folder: Path) -> Trackers:
    """Begin with the trackers of a recipe, or go on with those of a run that is resumed.

    Args:
        recipe: Names them.
        folder: Of the run, which remembers in ``trackers.json`` what it is called elsewhere.

    Raises:
        InputError: One cannot be reached, or wants a login.
    """
    path = folder / _IDS
    ids: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    trackers: dict[str, Tracker] = {}
    for name in recipe.log.trackers():
        try:
            trackers[name] = _TRACKERS[name](recipe, folder, ids)
        except Exception as error:
            Trackers(trackers).close()
            raise InputError(f"log.report_to: {name}: {first_line(error)[:200]}") from error
    if ids:
        path.write_text(json.dumps(ids) + "\n", encoding="utf-8")
    return Trackers(trackers)


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _value(value: Any) -> Any:
    """A cell that every tracker takes: a finite number, or text that is not too long."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if math.isfinite(value) else str(value)
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _cell(value: Any) -> str:
    """A cell of a Markdown table; what a policy wrote stays text there."""
    text = f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
    return re.sub(r"([\\|<>*_`\[\]])", r"\\\1", text).replace("\n", " ")
