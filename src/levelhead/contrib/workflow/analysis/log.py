"""Rollouts step by step, from the text logs that trainers of workflow policies print and from a run's own lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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
    marks = [mark for mark in map(_mark, lines) if mark is not None]
    steps = StepCounter(any(isinstance(mark, StepMark) and mark.total is not None for mark in marks))
    batches: list[Batch] = []
    held: list[str | None] = []

    def close(number: int | None, updated: bool) -> None:
        if held:
            batches.append(Batch(number, tuple(held), updated))
        held.clear()

    for mark in marks:
        if isinstance(mark, _Report):
            held.append(mark.workflow)
        elif isinstance(mark, _Update):
            close(steps.number, updated=True)
        else:
            number = steps.number
            if steps.begins(mark):
                close(number, updated=False)
    close(steps.number, updated=False)
    return batches


@dataclass(frozen=True, slots=True)
class _Report:
    workflow: str | None


@dataclass(frozen=True, slots=True)
class _Update:
    pass


def _mark(line: str) -> _Report | _Update | StepMark | None:
    report = _QUALITY.search(line)
    if report:
        return _Report(None if report["fallback"] == "True" else report["workflow"].strip())
    if is_update(line):
        return _Update()
    return step_mark(line)


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
