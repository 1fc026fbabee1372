"""Text logs of workflow-writing policies: one line a rollout, one line an optimizer update.

``DSL质量: fallback=False, ops=3, chain=True, DSL=Custom -> Programmer -> Review`` tells whether a rollout was a
workflow or fell back; ``触发梯度更新`` (a gradient update is triggered) separates one policy from the next.  A row is
what one policy wrote between two updates, so that the effect of each update can be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from levelhead.watch.readers import shapes
from levelhead.watch.readers.base import Row, Translator, Unread
from levelhead.watch.readers.lines import Lines
from levelhead.watch.readers.values import NUMBER

QUALITY = re.compile(r"DSL质量\s*[:\uff1a]")
_FALLBACK = re.compile(r"fallback\s*=\s*(True|False)", re.IGNORECASE)
_OPS = re.compile(r"\bops\s*=\s*(\d+)")
UPDATE = re.compile(r"触发梯度更新|gradient update triggered|optimizer\.step", re.IGNORECASE)
_REWARD = re.compile(rf"(?:总奖励|最终奖励|奖励|reward)\s*[=:\uff1a]\s*({NUMBER})", re.IGNORECASE)
_ROLLOUTS_WITHOUT_UPDATES = 64


class WorkflowReader:
    """Counts rollouts between updates.

    Rows carry ``validity`` (one minus the fallback share), ``reward`` and ``reward_std`` over the
    rollouts when the log prints rewards, ``updates`` (updates done before these rollouts) and any other signal that
    the lines name.  The step is the number of updates done plus one.
    """

    def __init__(self, extra: Mapping[str, str] | None = None) -> None:
        self.format = "workflow"
        self.unread = Unread()
        self._lines = Lines()
        self._translator = Translator("workflow", extra)
        self._number = 0
        self._updates = 0
        self._valid: list[bool] = []
        self._rewards: list[float] = []
        self._others: dict[str, float] = {}
        self._seen_update = False

    def feed(self, chunk: bytes) -> Iterator[Row]:
        """Rows of the updates that ``chunk`` completes."""
        for line in self._lines.feed(chunk):
            yield from self._line(line)

    def close(self) -> Iterator[Row]:
        """What the last policy wrote."""
        for line in self._lines.close():
            yield from self._line(line)
        yield from self._flush()

    def _line(self, line: str) -> Iterator[Row]:
        self._number += 1
        if "\x1b" in line:
            line = shapes.ANSI.sub("", line)
        if QUALITY.search(line):
            fallback = _FALLBACK.search(line)
            if not fallback:
                self.unread.add(self._number, "a quality line without fallback=True or False", line)
                return
            self._valid.append(fallback.group(1).lower() == "false")
            if not self._seen_update and len(self._valid) >= _ROLLOUTS_WITHOUT_UPDATES:
                yield from self._flush()
                self._updates += 1
            return
        reward = _REWARD.search(line)
        if reward:
            value = float(reward.group(1).replace(",", ""))
            self._rewards.append(value)
        for key, value_text in shapes.loose_pairs(line) if ("=" in line or ":" in line) else []:
            row = self._translator.row([(key, value_text)], self._number)
            if row and "reward" not in row.values:
                self._others.update(row.values)
        if UPDATE.search(line):
            self._seen_update = True
            yield from self._flush()
            self._updates += 1

    def _flush(self) -> Iterator[Row]:
        values = dict(self._others)
        if self._valid:
            values["validity"] = sum(self._valid) / len(self._valid)
        finite = [r for r in self._rewards if abs(r) < 1e12]
        if finite:
            average = sum(finite) / len(finite)
            values["reward"] = average
        values["updates"] = float(self._updates)
        if self._valid or finite:
            yield Row(float(self._updates + 1), values, None, self._number)
        self._valid, self._rewards, self._others = [], [], {}
