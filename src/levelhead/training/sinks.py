"""The progress of a stage on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from levelhead import metrics as metric
from levelhead.diagnosis.chinese import said
from levelhead.diagnosis.findings import Language
from levelhead.diagnosis.notice import printable
from levelhead.records import StepRecord
from levelhead.terminal import Pace, notebook, say
from levelhead.terminal.console import SafeConsole
from levelhead.terminal.spark import spark

QUIET_EVERY = 25
"""Where the output is no terminal, a line is printed every so many steps, and every half minute."""
LONGEST_CURVE = 32
"""Columns of a spark line."""
MOST_TASKS = 12
"""Tasks that have a line in the block."""

ConsoleValue = tuple[str, str, Callable[[float], str]]


class ProgressSink:
    """A block at the foot of the terminal that is drawn anew; a line now and then where nobody watches.

    The block holds the progress, what matters of the last step, each task's reward with its curve so far, and the
    newest event.

    Args:
        stage: Whose steps it shows.
        done: Steps of it that were done before.
        total: Steps that it has.
        console: The terminal; what is printed on it meanwhile stands above the block.
        quiet: Whether nothing is shown, as where another process shows it.
        tasks: Names of the tasks, in order.
        events: Says in one line what has happened so far; empty for nothing.
        language: Of the labels.
    """

    def __init__(
        self,
        stage: str,
        done: int,
        total: int,
        console: Console | None = None,
        *,
        quiet: bool = False,
        tasks: Sequence[str] = (),
        events: Callable[[], str] = str,
        language: Language = "en",
    ) -> None:
        self._language: Language = language
        self._stage, self._total, self._quiet = stage, total, quiet
        self._tasks, self._events = list(tasks)[:MOST_TASKS], events
        self._console = console or SafeConsole(stderr=True)
        self._curves: dict[str, list[float]] = {task: [] for task in self._tasks}
        self._note, self._pace = "", Pace()
        self._live: Live | None = None
        self._cell = None if quiet else notebook.handle()
        if self._console.is_terminal and not quiet:
            columns = (TextColumn("{task.description:>4}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(
                *columns, TextColumn(said("left", language)), TimeRemainingColumn(), console=self._console
            )
            self._task = self._bar.add_task(stage, total=total, completed=done)
            self._live = Live(
                console=self._console, get_renderable=lambda: Group(self._bar, *self._lines()), refresh_per_second=4
            )
            self._live.start()

    def write(self, record: StepRecord) -> None:
        """Show a record of this stage."""
        if record.stage != self._stage or self._quiet:
            return
        self._note = _note(record, self._language)
        for task, curve in self._curves.items():
            if (reward := record.values.get(metric.REWARD_BY_TASK.of(task))) is not None:
                curve.append(reward)
        if self._live is not None:
            self._bar.update(self._task, completed=record.step)
            self._live.refresh()
        elif self._cell is not None:
            rows = [(printable(task, 24), *shown) for task, *shown in self._rows(plain=False)]
            self._cell.update(notebook.block(record.step, self._total, self._note, rows, self._events()))
        elif self._pace.due() or record.step % QUIET_EVERY == 0 or record.step in (1, self._total):
            say(f"{self._stage} {record.step}/{self._total}  {self._note}", error=True)

    def close(self) -> None:
        """Leave the block as it is."""
        if self._live is not None:
            self._live.stop()

    def _lines(self) -> Iterator[Text | Table]:
        if self._note:
            yield Text(f"     {self._note}", no_wrap=True, overflow="ellipsis")
        if rows := self._rows(plain=not self._console.encoding.startswith("utf")):
            table = Table.grid(padding=(0, 2))
            for task, last, curve in rows:
                table.add_row(Text(f"     {printable(task, 24)}"), Text(last), Text(curve))
            yield table
        if told := self._events():
            yield Text(f"     {told}", style="yellow", no_wrap=True, overflow="ellipsis")

    def _rows(self, *, plain: bool) -> list[tuple[str, str, str]]:
        """Each task's newest reward and its curve so far."""
        curves = [(task, curve) for task, curve in self._curves.items() if curve]
        return [(task, f"{curve[-1]:+.3f}", spark(curve, LONGEST_CURVE, plain=plain)) for task, curve in curves]


_SHOWN: Sequence[ConsoleValue] = (
    (metric.REWARD, "reward", "{:+.3f}".format),
    (metric.ENTROPY, "entropy", "{:.3f}".format),
    (metric.KL, "KL", "{:.4f}".format),
    (metric.ZERO_STD, "dead groups", "{:.0%}".format),
    (metric.LOSS, "loss", "{:.4f}".format),
    (metric.STEP_TIME, "s/step", "{:.2f}".format),
)


def _note(record: StepRecord, language: Language) -> str:
    values: Mapping[str, Any] = {**record.values, **record.timings}
    return "  ".join(f"{said(label, language)} {form(values[key])}" for key, label, form in _SHOWN if key in values)
