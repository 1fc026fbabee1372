"""Text logs of workflow-writing policies: one line a rollout, one line an optimizer update.

``DSL质量: fallback=False, ops=3, chain=True, DSL=Custom -> Programmer -> Review`` tells whether a rollout was a
workflow or fell back; ``触发梯度更新`` (a gradient update is triggered) separates one policy from the next.  A row is
what one policy wrote in one step, so that the effect of each update can be read off the step after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from levelhead.contrib.workflow.analysis.log import StepCounter, is_update, step_mark
from levelhead.doctor.readers import shapes
from levelhead.doctor.readers.base import Row, Translator, Unread
from levelhead.doctor.readers.lines import Lines
from levelhead.doctor.readers.values import NUMBER
from levelhead.message import Message

QUALITY = re.compile(r"DSL质量\s*[:\uff1a]")
_FALLBACK = re.compile(r"fallback\s*=\s*(True|False)", re.IGNORECASE)
_REWARD = re.compile(rf"(?:总奖励|最终奖励|奖励|reward)\s*[=:\uff1a]\s*({NUMBER})", re.IGNORECASE)
_ROLLOUTS_WITHOUT_MARKS = 64
_NO_FALLBACK = Message("a quality line without fallback=True or False", "质量行缺少 fallback=True 或 False")


class WorkflowReader:
    """Counts rollouts step by step, and between updates.

    Rows carry ``validity`` (one minus the fallback share), ``reward`` (mean over the rollouts) where the log prints
    rewards, ``updates`` (updates done before these rollouts) and any other signal that the lines name.  The step is the
    log's own; a second row of one step, after an update within it, stands half a step on.  A log that numbers no steps
    has one row an update, counted from 1; one that marks neither has a row every 64 rollouts.
    """

    signature: ClassVar[re.Pattern[str]] = re.compile(r"DSL质量: fallback=(?:True|False)")

    def __init__(self, extra: Mapping[str, str] | None = None) -> None:
        self.format = "workflow"
        self.unread = Unread()
        self._lines = Lines()
        self._translator = Translator("workflow", extra)
        self._line_number = 0
        self._steps = StepCounter()
        self._part = 0.0
        self._rows = 0
        self._updates = 0
        self._valid: list[bool] = []
        self._rewards: list[float] = []
        self._others: dict[str, float] = {}

    def feed(self, chunk: bytes) -> Iterator[Row]:
        """Rows of the steps that ``chunk`` completes."""
        for line in self._lines.feed(chunk):
            yield from self._line(line)

    def close(self) -> Iterator[Row]:
        """What the last policy wrote."""
        for line in self._lines.close():
            yield from self._line(line)
        yield from self._flush(self._steps.number)

    def _line(self, line: str) -> Iterator[Row]:
        self._line_number += 1
        if "\x1b" in line:
            line = shapes.ANSI.sub("", line)
        if QUALITY.search(line):
            yield from self._report(line)
            return
        if is_update(line):
            self._numbers(line)
            yield from self._flush(self._steps.number)
            self._updates += 1
            return
        before, mark = self._steps.number, step_mark(line)
        if mark is not None and self._steps.begins(mark):
            yield from self._flush(before)
            self._part = 0.0
        self._numbers(line)

    def _report(self, line: str) -> Iterator[Row]:
        fallback = _FALLBACK.search(line)
        if not fallback:
            self.unread.add(self._line_number, _NO_FALLBACK(), line)
            return
        self._valid.append(fallback.group(1).lower() == "false")
        unmarked = self._steps.number is None and not self._updates
        if unmarked and len(self._valid) >= _ROLLOUTS_WITHOUT_MARKS:
            yield from self._flush(None)

    def _numbers(self, line: str) -> None:
        reward = _REWARD.search(line)
        if reward:
            self._rewards.append(float(reward.group(1).replace(",", "")))
        for key, value_text in shapes.loose_pairs(line) if ("=" in line or ":" in line) else []:
            row = self._translator.row([(key, value_text)], self._line_number)
            if row and "reward" not in row.values:
                self._others.update(row.values)

    def _flush(self, number: int | None) -> Iterator[Row]:
        values = dict(self._others)
        if self._valid:
            values["validity"] = sum(self._valid) / len(self._valid)
        finite = [r for r in self._rewards if abs(r) < 1e12]
        if finite:
            values["reward"] = sum(finite) / len(finite)
        values["updates"] = float(self._updates)
        if self._valid or finite:
            step = self._rows + 1.0 if number is None else number + self._part
            self._part = (1.0 + self._part) / 2
            self._rows += 1
            yield Row(step, values, None, self._line_number)
        self._valid, self._rewards, self._others = [], [], {}
