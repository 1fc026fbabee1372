"""Rollouts step by step, from the text logs that trainers of workflow policies print and from a run's own lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


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


_QUALITY = re.compile(r"DSL质量:\s*fallback=(?P<fallback>True|False)\b.*?\bDSL=(?P<workflow>.*)$")
_COUNTED_STEP = re.compile(r"\b(?:step|batch|步骤)\s*[:=#]?\s*(?P<step>[0-9]+)\s*/\s*[0-9]+", re.IGNORECASE)
_PLAIN_STEP = re.compile(r"^[^#*\w]*(?:step|batch|步骤|第)\s*[:=#]?\s*(?P<step>[0-9]+)", re.IGNORECASE)
_TAGS = re.compile(r"</?workflow>|^```[\w-]*$", re.IGNORECASE | re.MULTILINE)
_UPDATE = "触发梯度更新"
_NO_UPDATE = re.compile(rf"(?:未|不|没有|跳过)\s*{_UPDATE}")


def is_workflow_log(lines: Iterable[str]) -> bool:
    """Whether any of some lines (the first few hundred of a file will do) reports the quality of a workflow."""
    return any(_QUALITY.search(line) for line in lines)


def read_log(lines: Iterable[str]) -> list[Batch]:
    """Read a text log that reports one ``DSL质量: fallback=..., ops=..., chain=..., DSL=...`` line a rollout.

    A step number, higher than the last one, begins a new batch; where a log numbers its steps as ``Step 4/96``, only
    such numbers do, because answers of the policy may have lines like ``Step 1: ...``.  A line that says
    ``触发梯度更新`` marks the batch before it as followed by an optimizer step, and reports after it belong to the next
    batch.  Everything else is passed over.
    """
    marks = [mark for mark in map(_mark, lines) if mark is not None]
    counted = any(isinstance(mark, _Step) and mark.counted for mark in marks)
    batches: list[Batch] = []
    step: int | None = None
    held: list[str | None] = []
    updated = False

    def close() -> None:
        nonlocal held, updated
        if held:
            batches.append(Batch(step, tuple(held), updated))
        held, updated = [], False

    for mark in marks:
        if isinstance(mark, _Report):
            if updated:
                close()
            held.append(mark.workflow)
        elif isinstance(mark, _Update):
            updated = bool(held)
        elif mark.counted >= counted and (step is None or mark.number > step):
            close()
            step = mark.number
    close()
    return batches


@dataclass(frozen=True, slots=True)
class _Report:
    workflow: str | None


@dataclass(frozen=True, slots=True)
class _Update:
    pass


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    counted: bool


def _mark(line: str) -> _Report | _Update | _Step | None:
    report = _QUALITY.search(line)
    if report:
        return _Report(None if report["fallback"] == "True" else report["workflow"].strip())
    if _UPDATE in line:
        return None if _NO_UPDATE.search(line) else _Update()
    counted = _COUNTED_STEP.search(line)
    found = counted or _PLAIN_STEP.search(line)
    return _Step(int(found["step"]), counted is not None) if found else None


def batches_of_rollouts(rows: Iterable[Mapping[str, Any]]) -> list[Batch]:
    """Return the batches that a run's own rollout lines (``rollouts/*.jsonl.gz``) hold, in order of step.

    A line's workflow is ``info.workflow`` where the line keeps the score's info; else a valid completion itself, which
    is its workflow where the policy writes nothing else.  Lines that are no rollouts are passed over.
    """
    held: dict[int, list[str | None]] = {}
    for row in rows:
        step, valid = row.get("step"), row.get("valid")
        if isinstance(step, int) and isinstance(valid, bool):
            held.setdefault(step, []).append(_workflow_of(row) if valid else None)
    return [Batch(step, tuple(held[step]), updated=True) for step in sorted(held)]


def _workflow_of(row: Mapping[str, Any]) -> str:
    info = row.get("info")
    kept = info.get("workflow") if isinstance(info, Mapping) else None
    return kept if isinstance(kept, str) else _TAGS.sub("", str(row.get("completion", ""))).strip()
