"""What a number of answers holds: how varied, of which operators, of which structure.

A workflow is plain text here (``Custom -> Review ? Revise : done``); ``None`` stands for a fallback, an answer that
holds none.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
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
