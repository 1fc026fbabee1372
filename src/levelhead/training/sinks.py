"""Where step records go besides ``metrics.jsonl``: TensorBoard, Weights & Biases, the terminal."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from levelhead import metrics as metric
from levelhead.errors import InputError
from levelhead.recipe import Recipe, plain
from levelhead.records import StepRecord
from levelhead.terminal import say
from levelhead.terminal.console import SafeConsole

QUIET_EVERY = 25
"""Where the output is no terminal, a line is printed every so many steps."""


class Sink(Protocol):
    """Takes every step record."""

    def write(self, record: StepRecord, offset: int) -> None:
        """Take a record; ``offset`` is the number of steps of the stages before."""
        ...

    def close(self) -> None:
        """Flush and let go."""
        ...


class TensorBoardSink:
    """Event files in ``tensorboard/`` of the run."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def write(self, record: StepRecord, offset: int) -> None:
        """Write every value as a scalar under its name."""
        for name, value in {**record.values, **record.timings}.items():
            self._writer.add_scalar(f"{record.stage}/{name}", value, offset + record.step)

    def close(self) -> None:
        """Flush."""
        self._writer.close()


class WandbSink:
    """A Weights & Biases run."""

    def __init__(self, project: str, recipe: Recipe) -> None:
        import wandb

        self._run = wandb.init(project=project, name=recipe.name, config=plain(recipe))

    def write(self, record: StepRecord, offset: int) -> None:
        """Log every value under its stage and name."""
        values = {**record.values, **record.timings}
        self._run.log({f"{record.stage}/{k}": v for k, v in values.items()}, step=offset + record.step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class ProgressSink:
    """A bar with what matters; a line now and then where nobody watches.

    Args:
        stage: Whose steps it shows.
        done: Steps of it that were done before.
        total: Steps that it has.
        console: The terminal; what is printed on it meanwhile stands above the bar.
        quiet: Whether nothing is shown, as where another process shows it.
    """

    def __init__(
        self, stage: str, done: int, total: int, console: Console | None = None, *, quiet: bool = False
    ) -> None:
        self._stage, self._total, self._quiet = stage, total, quiet
        console = console or SafeConsole(stderr=True)
        self._bar: Progress | None = None
        if console.is_terminal and not quiet:
            columns = (TextColumn("{task.description:>4}"), BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, TextColumn("{task.fields[note]}"), console=console)
            self._task: TaskID = self._bar.add_task(stage, total=total, completed=done, note="")
            self._bar.start()

    def write(self, record: StepRecord, offset: int) -> None:  # noqa: ARG002
        """Show a record of this stage."""
        if record.stage != self._stage or self._quiet:
            return
        if self._bar is not None:
            self._bar.update(self._task, completed=record.step, note=_note(record))
        elif record.step % QUIET_EVERY == 0 or record.step in (1, self._total):
            say(f"{self._stage} {record.step}/{self._total}  {_note(record)}", error=True)

    def close(self) -> None:
        """Stop the bar."""
        if self._bar is not None:
            self._bar.stop()


_SHOWN: Sequence[tuple[str, str, Callable[[float], str]]] = (
    (metric.REWARD, "reward", "{:+.3f}".format),
    (metric.ENTROPY, "entropy", "{:.3f}".format),
    (metric.ZERO_STD, "dead", "{:.0%}".format),
    (metric.LOSS, "loss", "{:.4f}".format),
    (metric.STEP_TIME, "s/step", "{:.2f}".format),
)


def _note(record: StepRecord) -> str:
    values: Mapping[str, Any] = {**record.values, **record.timings}
    return "  ".join(f"{label} {form(values[key])}" for key, label, form in _SHOWN if key in values)


def check_sinks(recipe: Recipe) -> None:
    """Check that what the optional sinks need is there, before anything is written.

    Raises:
        InputError: The package of one is not installed.
    """
    for package, asked in (("tensorboard", recipe.log.tensorboard), ("wandb", recipe.log.wandb)):
        if asked and importlib.util.find_spec(package) is None:
            raise InputError(f"log.{package}: {package} is not installed; pip install {package}, or remove the key")


def make_sinks(recipe: Recipe, folder: Path) -> list[Sink]:
    """The optional sinks that a recipe asks for; see :func:`check_sinks`."""
    sinks: list[Sink] = []
    if recipe.log.tensorboard:
        sinks.append(TensorBoardSink(folder / "tensorboard"))
    if recipe.log.wandb:
        sinks.append(WandbSink(recipe.log.wandb, recipe))
    return sinks
