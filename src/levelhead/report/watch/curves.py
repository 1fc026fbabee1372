"""The numbers of a growing run as columns, so that a page can ask for the points that it does not have yet."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from levelhead.metrics import held_out
from levelhead.report.reading import step_of

MOST_CURVES = 5000
"""Names that are followed; a log with more than that has names made of data."""
LONGEST_NAME = 200


@dataclass(slots=True)
class Curve:
    """One number over the steps of a stage.

    Attributes:
        steps: Rising, shape (n,).
        values: NaN where the number was not finite, shape (n,).
        epoch: Counts up whenever points that had been there were taken back.
    """

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    epoch: int = 0

    def add(self, step: int, value: float) -> None:
        """Append a point; one at an earlier step takes back what stood from there on, as a resumed run does."""
        if self.steps and step <= self.steps[-1]:
            self.epoch += 1
            while self.steps and self.steps[-1] >= step:
                self.steps.pop()
                self.values.pop()
        self.steps.append(step)
        self.values.append(value)

    def since(self, epoch: int, count: int) -> dict[str, Any]:
        """Return the points behind the first ``count``, or all where those have been taken back."""
        start = count if epoch == self.epoch and 0 <= count <= len(self.steps) else 0
        return {
            "epoch": self.epoch,
            "start": start,
            "steps": self.steps[start:].tolist(),
            "values": [value if math.isfinite(value) else None for value in self.values[start:]],
        }


class Curves:
    """All curves of a run, by stage and name."""

    def __init__(self) -> None:
        self.clear()

    def clear(self, epoch: int = 0) -> None:
        """Forget everything; curves begin with ``epoch``."""
        self._curves: dict[tuple[str, str], Curve] = {}
        self._epoch = epoch
        self.stage = "start"
        self.step = 0
        self.rows = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in one line of ``metrics.jsonl``."""
        self.rows += 1
        stage, step = str(row.get("stage")), step_of(row)
        if stage in ("sft", "grpo"):
            self.stage, self.step = stage, step
        for name, value in row.items():
            if name == "step" or isinstance(value, bool) or len(name) > LONGEST_NAME:
                continue
            if value in ("nan", "inf", "-inf"):
                value = math.nan
            if isinstance(value, int | float):
                self._put(self.stage, name, step, value)
                if row.get(held_out.EVAL_STAGE) in ("start", "sft"):
                    # What was measured before the first GRPO step is where its held-out curves begin.
                    self._put("grpo", name, 0, value)

    def since(self, stage: str, name: str, epoch: int, count: int) -> dict[str, Any] | None:
        """Return the new points of a curve, as :meth:`Curve.since` does; ``None`` where there is no such curve."""
        curve = self._curves.get((stage, name))
        return None if curve is None else curve.since(epoch, count)

    def names(self) -> dict[str, list[str]]:
        """Names by stage, in the order in which they came up."""
        names: dict[str, list[str]] = {}
        for stage, name in self._curves:
            names.setdefault(stage, []).append(name)
        return names

    def _put(self, stage: str, name: str, step: int, value: float) -> None:
        curve = self._curves.get((stage, name))
        if curve is None:
            if len(self._curves) >= MOST_CURVES:
                return
            curve = self._curves[stage, name] = Curve(epoch=self._epoch)
        try:
            curve.add(step, float(value))
        except OverflowError:
            curve.add(step, math.nan)
