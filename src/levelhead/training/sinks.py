"""Where step records go besides ``metrics.jsonl`` and experiment trackers: the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from levelhead import metrics as metric
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


class ProgressSink:
    """A bar with what matters; a line now and then where nobody watches.

    Args:
        stage: Whose steps it shows.
        done: Steps of it that were done before.
        total: Steps that it has.
        console: The terminal; what is printed on it meanwhile stands above the bar.
    """

    def __init__(self, stage: str, done: int, total: int, console: Console | None = None) -> None:
        self._stage, self._total = stage, total
        console = console or SafeConsole(stderr=True)
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = (TextColumn("{task.description:>4}"), BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, TextColumn("{task.fields[note]}"), console=console)
            self._task: TaskID = self._bar.add_task(stage, total=total, completed=done, note="")
            self._bar.start()

    def write(self, record: StepRecord, offset: int) -> None:  # noqa: ARG002
        """Show a record of this stage."""
        if record.stage != self._stage:
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
