"""From rows to the history of one run: steps for rows that name none, restarts, resumptions, duplicates."""

from __future__ import annotations

import math
from dataclasses import replace

from levelhead.diagnosis.history import DEFAULT_CAPACITY, History
from levelhead.doctor.readers.base import Row, Unread

_STUCK = 3
_MOST_STEPS = 1e15
"""A step beyond it is no place in a run."""


class Collector:
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
        self._offset = 0.0
        self._begin()

    def _begin(self) -> None:
        self.history = History(self._capacity)
        self._last_step = math.nan
        self._last_epoch: float | None = None
        self._first_epoch: float | None = None
        self._last_values: dict[str, float] = {}
        self._stuck = 0
        self._own_steps = False
        self._offset = 0.0

    @property
    def run(self) -> History:
        """The history to diagnose."""
        return self.history if self._best is None or self.history.rows >= self._best.rows else self._best

    def add(self, row: Row) -> None:
        """Take the next row of the log."""
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
            return self._again(row)
        if row.epoch is not None and self._last_epoch is not None and row.epoch > self._last_epoch and row.step <= 1:
            self._offset = self._last_step + 1 - row.step
            return row.step + self._offset
        if step <= self.history.first_step + 1:
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

    def _again(self, row: Row) -> float | None:
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
        self._unread.add(0, f"another run starts after {finished.rows} rows; the run with the most rows is diagnosed")
        self._begin()

    def _resume(self, step: float) -> None:
        """Training went back to a checkpoint: what came after it in the log was undone."""
        for column in self.history.columns.values():
            while column.steps and column.steps[-1] >= step:
                column.steps.pop()
                column.values.pop()
