"""Whether the policy still reads: how the guard follows, step by step, what answers tell of their prompts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from levelhead.diagnosis.sameness import PREFIX, Sameness, judge, names, stands_still, tells
from levelhead.diagnosis.stats import mean
from levelhead.guard import messages
from levelhead.message import Phrase

LEAST_STRENGTH = 0.5
"""Strength of the case from which answers count as one and the same."""
MATTERS = 0.1
"""Share of prompts by which the most common answer must lead that of perfect answers to be worth a thought."""

Row = dict[str, float]
"""Readings of one step by gauge."""


class Reading:
    """The newest answers of each task against what they told of the prompt at their best.

    Args:
        window: Steps that are judged together; a reward has stopped when it has not risen over two of them.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._tasks: dict[str, list[Row]] = {}
        self._best: dict[str, float] = {}
        self.constant = 0

    def add(self, values: Mapping[str, float]) -> None:
        """Take in one step's numbers."""
        for name in values:
            if name.startswith(PREFIX):
                self._add(name.removeprefix(PREFIX), values)
        alike = any(
            (case := self._judge(task, self._window // 2)) and case.strength >= LEAST_STRENGTH for task in self._tasks
        )
        self.constant = self.constant + 1 if alike else 0

    def _add(self, task: str, values: Mapping[str, float]) -> None:
        rows = self._tasks.setdefault(task, [])
        readings = {gauge: values[name] for gauge, name in names(task).items() if name in values}
        rows.append({gauge: value for gauge, value in readings.items() if abs(value) < float("inf")})
        del rows[: -2 * self._window]
        information = self._column(task, "information", self._window)
        if len(information) == self._window and tells(information):
            self._best[task] = max(self._best.get(task, 0.0), mean(information))

    def _judge(self, task: str, n: int) -> Sameness | None:
        """The newest n steps of a task; ``None`` where there are fewer."""
        if len(self._tasks[task]) < n:
            return None
        return judge(task, {gauge: self._column(task, gauge, n) for gauge in names(task)})

    def _column(self, task: str, gauge: str, n: int) -> list[float]:
        """The readings of a gauge in the newest n steps."""
        return [row[gauge] for row in self._tasks[task][-n:] if gauge in row]

    def stuck(self, patience: int) -> Sameness | None:
        """A task that has had one answer to everything for a window, and whose reward has stopped rising.

        One whose answers have never told anything of the prompt counts only after ``patience`` steps: it may first find
        the best answer to all prompts, and only then learn to tell them apart.
        """
        for task in self._tasks:
            case = self._judge(task, self._window)
            if (
                case is None
                or case.strength < LEAST_STRENGTH
                or not stands_still(self._column(task, "reward", 2 * self._window))
            ):
                continue
            if self.has_read(task) or self.constant >= patience:
                return case
        return None

    def describe(self, case: Sameness) -> Phrase:
        """One answer to everything, in words."""
        best = self._best.get(case.task, 0.0)
        return messages.ONE_ANSWER(share=case.share, task=case.task, best=best, now=case.information)

    def has_read(self, task: str) -> bool:
        """Whether the answers of a task have told anything of the prompt in this run."""
        return task in self._best

    @property
    def sound(self) -> bool:
        """Whether no task has lost half of what its answers told while one answer spreads over its prompts."""
        # The newest step by itself too: its weights are those that would be kept.
        for task, n in itertools.product(self._tasks, (1, self._window // 2)):
            case = self._judge(task, n)
            if case is None or (case.perfect is not None and case.share < case.perfect + MATTERS):
                continue
            lost = self.has_read(task) and case.information < 0.5 * self._best[task]
            if case.strength >= LEAST_STRENGTH or (lost and case.share > 0.6):
                return False
        return True

    def restart(self) -> None:
        """Forget the newest answers: they are another policy's."""
        self._tasks = {}
        self.constant = 0

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, as JSON."""
        return {"tasks": self._tasks, "best": self._best, "constant": self.constant}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self._tasks = {task: [dict(row) for row in rows] for task, rows in state["tasks"].items()}
        self._best = dict(state["best"])
        self.constant = int(state["constant"])
