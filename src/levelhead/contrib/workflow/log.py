"""Rollouts step by step, from the text logs that trainers of workflow policies print and from a run's own lines.

``DSL质量: fallback=False, ops=3, chain=True, DSL=Custom -> Programmer -> Review`` tells whether a rollout was a
workflow or fell back; ``触发梯度更新`` (a gradient update is triggered) separates one policy from the next.  A row of
:class:`WorkflowReader` is what one policy wrote in one step, so that the effect of each update can be read off the step
after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from levelhead.doctor.readers import shapes
from levelhead.doctor.readers.base import Row, Translator, Unread
from levelhead.doctor.readers.lines import Lines
from levelhead.doctor.readers.values import NUMBER
from levelhead.message import Message

_MOST_STEPS = 10**15


@dataclass(frozen=True, slots=True)
class Batch:
    """The rollouts of one step of a text log.

    Attributes:
        step: Its number in the log; ``None`` where none was printed before it.
        workflows: One text a rollout, ``None`` for a fallback.
        updated: Whether the log says that the optimizer stepped after them.
    """

    step: int | None
    workflows: tuple[str | None, ...]
    updated: bool

    @property
    def validity(self) -> float:
        """Return the share of rollouts that hold a workflow."""
        return sum(text is not None for text in self.workflows) / len(self.workflows)


_QUALITY = re.compile(r"DSL质量:\s{0,8}fallback=(?P<fallback>True|False)\b.{0,400}?\bDSL=(?P<workflow>.*)$")
_COUNTED_STEP = re.compile(
    r"\b(?:step|batch|步骤)\s{0,8}[:=#]?\s{0,8}(?P<step>[0-9]+)\s{0,8}/\s{0,8}(?P<total>[0-9]+)", re.IGNORECASE
)
_HEADLINE = re.compile(r"^(?:\W*|.{0,60}\b(?:INFO|WARNING|DEBUG)\b\W*)(?:step|batch|步骤)", re.IGNORECASE)
_PLAIN_STEP = re.compile(r"^[^#*\w]*(?:step|batch|步骤|第)\s{0,8}[:=#]?\s{0,8}(?P<step>[0-9]+)", re.IGNORECASE)
_TAGS = re.compile(r"</?workflow>|^```[\w-]*$", re.IGNORECASE | re.MULTILINE)
_UPDATE = re.compile(r"触发梯度更新|gradient update triggered|optimizer\.step", re.IGNORECASE)
_NO_UPDATE = re.compile(
    r"(?:未|不|没有|跳过|\bno|\bnot|\bskip\w{0,8})\s{0,8}(?:触发梯度更新|gradient update triggered|optimizer\.step)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class StepMark:
    """A line that gives the number of a step.

    Attributes:
        number: The step.
        total: Steps of the run, where the line gives them (``Step 4/96``).
        headline: Whether the line begins with it.
    """

    number: int
    total: int | None
    headline: bool


def step_mark(line: str) -> StepMark | None:
    """Return the step that a line of a log gives the number of, if it does."""
    counted = _COUNTED_STEP.search(line)
    if counted:
        return StepMark(int(counted["step"][:15]), int(counted["total"][:15]), _HEADLINE.match(line) is not None)
    plain = _PLAIN_STEP.search(line)
    return StepMark(int(plain["step"][:15]), None, True) if plain else None


def is_update(line: str) -> bool:
    """Whether a line of a log says that the optimizer steps."""
    return _UPDATE.search(line) is not None and _NO_UPDATE.search(line) is None


class StepCounter:
    """Tells the lines that begin a step from others with numbers, such as an answer's own ``Step 1: ...``.

    Where a log numbers its steps as ``Step 4/96``, only numbers with its largest total do, in lines that begin with
    them also lower ones: the run has gone back to a checkpoint.  Of plain numbers, higher ones do.

    Args:
        counted: Whether the log is known to number its steps so; found out on the way unless given.
    """

    def __init__(self, counted: bool = False) -> None:
        self.number: int | None = None
        self._total = 0 if counted else -1

    def begins(self, mark: StepMark) -> bool:
        """Whether the line begins another step; :attr:`number` then is its number."""
        total = -1 if mark.total is None else mark.total
        if total < self._total or mark.number == self.number:
            return False
        lower = self.number is not None and mark.number < self.number
        if lower and not (mark.total is not None and mark.headline):
            return False
        self._total = total
        self.number = mark.number
        return True


def is_workflow_log(lines: Iterable[str]) -> bool:
    """Whether any of some lines (the first few hundred of a file will do) reports the quality of a workflow."""
    return any(_QUALITY.search(line) for line in lines)


def read_log(lines: Iterable[str]) -> list[Batch]:
    """Read a text log that reports one ``DSL质量: fallback=..., ops=..., chain=..., DSL=...`` line a rollout.

    A line that begins a step (:class:`StepCounter`) begins a batch.  A line that says ``触发梯度更新`` ends the batch
    before it, as followed by an optimizer step; reports after it belong to the next batch.  Everything else is passed
    over.
    """
    marks = [mark for line in lines if (mark := _QUALITY.search(line) or is_update(line) or step_mark(line))]
    steps = StepCounter(any(isinstance(mark, StepMark) and mark.total is not None for mark in marks))
    batches: list[Batch] = []
    held: list[str | None] = []

    def close(number: int | None, updated: bool) -> None:
        if held:
            batches.append(Batch(number, tuple(held), updated))
        held.clear()

    for mark in marks:
        if isinstance(mark, re.Match):
            held.append(None if mark["fallback"] == "True" else mark["workflow"].strip())
        elif isinstance(mark, StepMark):
            number = steps.number
            if steps.begins(mark):
                close(number, updated=False)
        else:
            close(steps.number, updated=True)
    close(steps.number, updated=False)
    return batches


def batches_of_rollouts(rows: Iterable[Mapping[str, Any]]) -> list[Batch]:
    """Return the batches that a run's own rollout lines (``rollouts/*.jsonl.gz``) hold, in order of step.

    A line's workflow is ``info.workflow`` where the line keeps the score's info; else a valid completion itself, which
    is its workflow where the policy writes nothing else.  Lines that are no rollouts are passed over.
    """
    held: dict[int, list[str | None]] = {}
    for row in rows:
        step, valid = row.get("step"), row.get("valid")
        if isinstance(step, int) and abs(step) < _MOST_STEPS and isinstance(valid, bool):
            held.setdefault(step, []).append(_workflow_of(row) if valid else None)
    return [Batch(step, tuple(held[step]), updated=True) for step in sorted(held)]


def _workflow_of(row: Mapping[str, Any]) -> str:
    info = row.get("info")
    workflow = info.get("workflow") if isinstance(info, Mapping) else None
    return workflow if isinstance(workflow, str) else _TAGS.sub("", str(row.get("completion", ""))).strip()


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
