"""From rows to the history of one run: steps for rows that name none, restarts, resumptions, duplicates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from levelhead.diagnosis.history import DEFAULT_CAPACITY, History
from levelhead.doctor.readers.base import Row, Unread
from levelhead.doctor.readers.places import FIRST, HIGHEST, LAST, LOWEST, MEAN, ORDER
from levelhead.message import Message

_STUCK = 3
_MOST_STEPS = 1e15
"""A step beyond it is no place in a run."""
_MAX_SUMMARY = 500
_MAX_RUNS = 200
_ANOTHER_RUN = Message(
    "another run starts after {rows} rows; the run with the most rows is diagnosed",
    "第 {rows} 行之后开始了另一次训练\uff1b诊断的是行数最多的那一次",
)
_PEAKS = ("kl", "grad_norm", "loss", "clip", "mismatch", "sampling", "completions/max")
_FLOORS = ("entropy", "validity")


def _telling(name: str, row: Mapping[str, float]) -> frozenset[str]:
    """The statistics of a signal that say how a run went: the ends and the mean, and the extreme that would be a fault.

    The extremes of a reward are its noise, but all that there is where nothing else is told.
    """
    ends = {s for s in (FIRST, MEAN, LAST) if s in row}
    if any(part in name for part in _PEAKS):
        ends.add(HIGHEST)
    elif any(part in name for part in _FLOORS):
        ends.add(LOWEST)
    return frozenset(ends & row.keys() or row.keys())


class HistoryBuilder:
    """Fills a :class:`History`, and starts another where the log starts another run.

    A file may hold several runs (a log that is appended to).  The one with the most rows is kept, the latest of
    equals; the others are counted.

    Args:
        unread: Receives a note for every run left out.
        capacity: Passed to the history.
    """

    def __init__(self, unread: Unread, capacity: int = DEFAULT_CAPACITY) -> None:
        self._unread = unread
        self._capacity = capacity
        self._best: History | None = None
        self._first: Row | None = None
        self._offset = 0.0
        self._part, self._moved = 0, False
        self.summary: dict[str, dict[str, float]] = {}
        self.runs: dict[str, History] = {}
        self._begin()

    def _begin(self) -> None:
        self.history = History(self._capacity)
        self._last_step = math.nan
        self._last_epoch: float | None = None
        self._first_epoch: float | None = None
        self._last_values: dict[str, float] = {}
        self._stuck = 0
        self._own_steps = self._stepped = False
        self._offset = 0.0

    @property
    def run(self) -> History:
        """The history of the run that is diagnosed."""
        self._place_first(None)
        return self.history if self._best is None or self.history.rows >= self._best.rows else self._best

    def settle(self) -> History:
        """The history to diagnose, with the statistics of the whole run where it has no readings of a signal.

        They stand in the order first, lowest, mean, highest, last, at steps that only keep the order.
        """
        history = self.run
        if self.runs and history.rows + len(self.summary) <= 1:
            # A table of runs, and nothing else that is the course of one.
            return next(iter(self.runs.values()))
        self.runs = {}
        self.summary = {n: row for n, row in self.summary.items() if not len(history.series(n))}
        alone = not history.rows
        first, last = (0.0, 4.0) if alone else (history.first_step, history.last_step)
        for i, statistic in enumerate(ORDER):
            values = {n: row[statistic] for n, row in self.summary.items() if statistic in _telling(n, row)}
            step = first + (last - first) * i / (len(ORDER) - 1)
            if alone:
                history.append(step, values)
                continue
            for name, value in values.items():
                history.put(name, step, value)
        return history

    def add(self, row: Row) -> None:
        """Take the next row of the log."""
        if row.statistic:
            for name, value in row.values.items():
                if len(self.summary) < _MAX_SUMMARY or name in self.summary:
                    self.summary.setdefault(name, {})[row.statistic] = value
            return
        if row.run:
            if len(self.runs) < _MAX_RUNS or row.run in self.runs:
                run = self.runs.setdefault(row.run, History(self._capacity))
                run.append(run.rows + 1.0, row.values)
            return
        self._moved, self._part = row.part != self._part, row.part
        if self._moved and row.step is not None and (lone := self._first):
            # A block of numbers without a step says where the run of the next table stands: its last word on them.
            self._first = None
            self.add(replace(lone, statistic=LAST, part=row.part))
        if self._moved and self.history.rows and (row.step is None) == self._stepped:
            self._new_run()
        if row.step is None and self._first is None and not self.history.rows and not self._own_steps:
            self._first = row
            return
        self._place_first(row.step)
        self._add(row)

    def _place_first(self, next_step: float | None) -> None:
        """Place a first row that names no step: before the next one's, or at 1 where that names none either."""
        row, self._first = self._first, None
        if row is not None:
            self._add(row if next_step is None else replace(row, step=next_step - 1))

    def _add(self, row: Row) -> None:
        if row.step is not None and not abs(row.step) <= _MOST_STEPS:
            row = replace(row, step=None)
        step = self._step_of(row)
        if step is None:
            return
        values = row.values
        if step == self._last_step:
            values = {name: value for name, value in values.items() if not self._read_at(name, step)}
            self._last_values.update(values)
        else:
            self._last_values = dict(values)
        self.history.append(step, values)
        self._last_step = step
        self._stepped = row.step is not None
        if row.epoch is not None and math.isfinite(row.epoch):
            if self._first_epoch is None:
                self._first_epoch = row.epoch
            self._last_epoch = row.epoch
            self.history.place(row.epoch)

    def _next(self) -> float:
        return 1.0 if math.isnan(self._last_step) else self._last_step + 1

    def _step_of(self, row: Row) -> float | None:
        """The row's place in the run; ``None`` for a duplicate."""
        if row.step is None or self._own_steps:
            if self._epoch_restarts(row):
                self._new_run()
            return self._next()
        step = row.step + self._offset
        if math.isnan(self._last_step) or step > self._last_step:
            self._stuck = 0
            return step
        read = [name for name in row.values if self._read_at(name, step)]
        if len(read) <= len(row.values) // 2:
            # Another part of the same step: the rollout's and the trainer's numbers are often logged apart.
            return step
        if step == self._last_step:
            return self._second_row(row)
        if row.epoch is not None and self._last_epoch is not None and row.epoch > self._last_epoch and row.step <= 1:
            self._offset = self._last_step + 1 - row.step
            return row.step + self._offset
        if step <= self.history.first_step + 1:
            self._new_run()
            return row.step
        if self._moved:
            self._new_run()
            return row.step
        self._resume(step)
        return step

    def _read_at(self, name: str, step: float) -> bool:
        """Whether the run has a reading of ``name`` at ``step`` or later."""
        column = self.history.columns.get(name)
        if column is None:
            return False
        return (bool(column.steps) and column.steps[-1] >= step) or column.bad.last >= step

    def _second_row(self, row: Row) -> float | None:
        """A second row for the step: a copy (several ranks print it), or a step that does not count."""
        same = all(value == self._last_values.get(name) or value != value for name, value in row.values.items())
        if same:
            return None
        self._stuck += 1
        if self._stuck < _STUCK:
            return None
        self._own_steps = True
        return self._next()

    def _epoch_restarts(self, row: Row) -> bool:
        if row.epoch is None or self._last_epoch is None or self._first_epoch is None:
            return False
        return row.epoch < self._last_epoch and row.epoch <= max(self._first_epoch * 1.5, 0.1 * self._last_epoch)

    def _new_run(self) -> None:
        finished = self.history
        if self._best is None or finished.rows >= self._best.rows:
            self._best = finished
        self._unread.add(0, _ANOTHER_RUN(rows=finished.rows))
        self._begin()

    def _resume(self, step: float) -> None:
        """Training went back to a checkpoint: what came after it in the log was undone."""
        undone = 0
        for column in self.history.columns.values():
            before = len(column)
            while column.steps and column.steps[-1] >= step:
                column.steps.pop()
                column.values.pop()
            undone = max(undone, before - len(column))
        self.history.rows -= undone
