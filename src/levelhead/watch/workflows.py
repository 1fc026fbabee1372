"""What a policy that writes workflows does: how varied it is, what it uses, and what its updates do to it.

Pure functions over texts and numbers, and a reader for the text logs that trainers of such policies print.  A workflow
is plain text here (``Custom -> Review ? Revise : done``); ``None`` stands for a fallback, an answer that holds none.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Structure = Literal["single", "chain", "conditional", "loop", "parallel"]

STRUCTURES: tuple[Structure, ...] = ("single", "chain", "conditional", "loop", "parallel")
"""From plain to elaborate; a workflow belongs to the last class it has a mark of."""

_LOOP = re.compile(r"\*\s*[0-9]+")
_OPERATOR = re.compile(r"[A-Za-z_]\w*")


def structure(workflow: str) -> Structure:
    """Return the class of a workflow: the last of ``STRUCTURES`` that its text has a mark of."""
    if "[" in workflow:
        return "parallel"
    if _LOOP.search(workflow):
        return "loop"
    if "?" in workflow:
        return "conditional"
    return "chain" if "->" in workflow else "single"


def operators(workflow: str) -> list[str]:
    """Return the operators of a workflow as written, in reading order and with repeats; ``done`` is none."""
    return [name for name in _OPERATOR.findall(workflow) if name != "done"]


@dataclass(frozen=True, slots=True)
class Census:
    """What a number of answers holds.

    Attributes:
        answers: How many there are.
        valid: How many of them hold a workflow; the shares below are of these, but for ``fallback``.
        fallback: Share of the answers that hold none.
        unique: Different workflows.
        top: The ten most frequent: text, count, share.
        entropy: Shannon entropy of the distribution over workflows, in nats; 0 where all are the same.
        operators: Share of the workflows that use an operator at least once, most used first.
        structures: Share of each structure class.
    """

    answers: int
    valid: int
    fallback: float
    unique: int
    top: tuple[tuple[str, int, float], ...]
    entropy: float
    operators: Mapping[str, float]
    structures: Mapping[Structure, float]

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain values."""
        return {
            "answers": self.answers,
            "valid": self.valid,
            "fallback": self.fallback,
            "unique": self.unique,
            "top": [{"workflow": text, "count": count, "share": share} for text, count, share in self.top],
            "entropy": self.entropy,
            "operators": dict(self.operators),
            "structures": dict(self.structures),
        }


def census(workflows: Iterable[str | None]) -> Census:
    """Count what answers hold: a workflow's text each, or ``None`` for a fallback."""
    answers = list(workflows)
    counts = Counter(" ".join(text.split()) for text in answers if text is not None)
    valid = counts.total()
    users: Counter[str] = Counter()
    classes: Counter[Structure] = Counter()
    for text, count in counts.items():
        classes[structure(text)] += count
        for operator in set(operators(text)):
            users[operator] += count
    ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    return Census(
        answers=len(answers),
        valid=valid,
        fallback=1.0 - valid / len(answers) if answers else 0.0,
        unique=len(counts),
        top=tuple((text, count, count / valid) for text, count in ranked[:10]),
        entropy=-sum(count / valid * math.log(count / valid) for count in counts.values()) + 0.0,
        operators={name: n / valid for name, n in sorted(users.items(), key=lambda entry: (-entry[1], entry[0]))},
        structures={name: classes[name] / valid if valid else 0.0 for name in STRUCTURES},
    )


@dataclass(frozen=True, slots=True)
class Collapse:
    """How often an update was followed by a collapse.

    Attributes:
        updates: Updates with rollouts on both sides, before which there was validity to lose.
        collapsed: Those whose next rollouts had lost more than half of it.
        at: Indices of the batches whose update was followed by a collapse.
    """

    updates: int
    collapsed: int
    at: tuple[int, ...]

    @property
    def rate(self) -> float | None:
        """Return the share of updates that were followed by a collapse; ``None`` where there was no update."""
        return self.collapsed / self.updates if self.updates else None


def collapse_after_update(validity: Sequence[float], updated: Sequence[bool] | None = None) -> Collapse:
    """Count the updates whose next rollouts lost more than half of the validity they had.

    Args:
        validity: Share of valid answers of each rollout batch, in order.
        updated: Whether the optimizer stepped after each batch; after every one unless given.

    Raises:
        ValueError: The two differ in length.
    """
    stepped = [True] * len(validity) if updated is None else list(updated)
    if len(stepped) != len(validity):
        raise ValueError(f"{len(validity)} batches need {len(validity)} marks of updates, got {len(stepped)}")
    # The last batch's update has no rollouts after it, and a batch without validity has none to lose.
    judged = [i for i in range(len(validity) - 1) if stepped[i] and validity[i] > 0]
    at = tuple(i for i in judged if validity[i + 1] < validity[i] / 2)
    return Collapse(len(judged), len(at), at)


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


@dataclass(frozen=True, slots=True)
class Analysis:
    """All that is said of a run whose policy writes workflows.

    Attributes:
        overall: Census of everything it wrote.
        batches: Census of each batch, by its step; batches without a number are counted from 1.
        collapse: What its updates did to its validity.
    """

    overall: Census
    batches: Mapping[int, Census]
    collapse: Collapse

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain values."""
        steps = list(self.batches)
        return {
            "overall": self.overall.to_json(),
            "validity": {step: 1.0 - found.fallback for step, found in self.batches.items()},
            "collapse": {
                "updates": self.collapse.updates,
                "collapsed": self.collapse.collapsed,
                "rate": self.collapse.rate,
                "steps": [steps[i] for i in self.collapse.at if i < len(steps)],
            },
        }

    def tables(self) -> list[Table]:
        """Return the tables of a report: the numbers, the ten most frequent workflows, operators, structures."""
        found, collapse = self.overall, self.collapse
        rate = (
            "no update"
            if collapse.rate is None
            else f"{collapse.collapsed} of {collapse.updates} ({collapse.rate:.1%})"
        )
        numbers = (
            ("answers", str(found.answers)),
            ("valid workflows", f"{found.valid} ({1.0 - found.fallback:.1%})"),
            ("fallbacks", f"{found.answers - found.valid} ({found.fallback:.1%})"),
            ("different workflows", str(found.unique)),
            ("entropy", f"{found.entropy:.3f} nats"),
            ("updates followed by a collapse", rate),
        )
        return [
            Table("Workflows", ("what", "how many"), numbers),
            Table(
                "Most frequent workflows",
                ("workflow", "count", "share"),
                tuple((text, str(count), f"{share:.1%}") for text, count, share in found.top),
            ),
            Table("Operators", ("operator", "used by"), tuple((n, f"{s:.1%}") for n, s in found.operators.items())),
            Table("Structure", ("class", "share"), tuple((n, f"{s:.1%}") for n, s in found.structures.items())),
        ]


@dataclass(frozen=True, slots=True)
class Table:
    """A title, a header and rows of text."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def analyse(batches: Sequence[Batch]) -> Analysis:
    """Analyse a run from its batches, in order."""
    censuses: dict[int, Census] = {}
    for place, batch in enumerate(batches, start=1):
        step = place if batch.step is None or batch.step in censuses else batch.step
        censuses[step] = census(batch.workflows)
    return Analysis(
        census(text for batch in batches for text in batch.workflows),
        censuses,
        collapse_after_update([batch.validity for batch in batches], [batch.updated for batch in batches]),
    )
