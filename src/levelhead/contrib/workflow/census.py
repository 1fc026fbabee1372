"""What answers hold (how varied, of which operators and structure), and what a policy chooses for which problems.

A workflow is plain text here (``Custom -> Review ? Revise : done``); ``None`` stands for a fallback, an answer that
holds none.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
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
        top = [{"workflow": text, "count": count, "share": share} for text, count, share in self.top]
        return asdict(self) | {"top": top}


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


_LARGEST = 1e60
_DOMAINS = ("math", "code", "qa")
_DIFFICULTIES = ("easy", "medium", "hard")


@dataclass(frozen=True, slots=True)
class Written:
    """One answer of the policy with its score.

    Attributes:
        domain: Of its problem.
        difficulty: Of its problem.
        workflow: Its workflow; ``None`` for a fallback.
        reward: Its reward.
        right: Whether the workflow's answer was right.
        tokens: What the workflow's operators used; ``None`` for a fallback.
        calls: Operators that were run; ``None`` for a fallback.
    """

    domain: str
    difficulty: str
    workflow: str | None
    reward: float
    right: bool
    tokens: float | None = None
    calls: float | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """What a policy chooses for one class of problems.

    Attributes:
        domain: The class's domain.
        difficulty: The class's difficulty.
        answers: Census of its answers there.
        reward: Mean reward.
        accuracy: Share of right answers.
        tokens: Mean tokens of valid workflows; ``None`` where there is none.
        calls: Mean operators run by valid workflows; ``None`` where there is none.
    """

    domain: str
    difficulty: str
    answers: Census
    reward: float
    accuracy: float
    tokens: float | None
    calls: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain values."""
        return asdict(self) | {"answers": self.answers.to_json()}

    def row(self) -> tuple[str, ...]:
        """Return what a table says of it: class, answers, the first choice and its share, reward, accuracy, cost."""
        first, share = (self.answers.top[0][0], self.answers.top[0][2]) if self.answers.top else ("(none valid)", 0.0)
        return (
            f"{self.domain}, {self.difficulty}",
            str(self.answers.answers),
            first,
            f"{share * self.answers.valid / self.answers.answers:.0%}",
            f"{self.reward:.3f}",
            f"{self.accuracy:.0%}",
            "" if self.tokens is None else f"{self.tokens:.0f}",
            "" if self.calls is None else f"{self.calls:.1f}",
        )


HEADER = ("problems", "answers", "most frequent workflow", "share", "reward", "right", "tokens", "operators run")
"""What the columns of :meth:`Choice.row` are."""


def choices(answers: Iterable[Written]) -> list[Choice]:
    """Return what a policy chooses per domain and difficulty, the known classes in order, others after them."""
    groups: dict[tuple[str, str], list[Written]] = defaultdict(list)
    for answer in answers:
        groups[answer.domain, answer.difficulty].append(answer)
    return [
        Choice(
            *place,
            census(answer.workflow for answer in groups[place]),
            fmean(answer.reward for answer in groups[place]),
            fmean(answer.right for answer in groups[place]),
            _mean(answer.tokens for answer in groups[place]),
            _mean(answer.calls for answer in groups[place]),
        )
        for place in sorted(groups, key=_order)
    ]


def written(row: Mapping[str, Any]) -> Written | None:
    """Read one line of a run's ``rollouts/*.jsonl.gz``; ``None`` where it says not what class its problem is of."""
    info, parts, reward = row.get("info"), row.get("parts"), row.get("reward")
    reward_value = _finite(reward)
    if not isinstance(info, Mapping) or reward_value is None:
        return None
    domain, difficulty, workflow = info.get("domain"), info.get("difficulty"), info.get("workflow")
    if not isinstance(domain, str) or not isinstance(difficulty, str):
        return None
    right = isinstance(parts, Mapping) and parts.get("correctness") == 1.0
    text = workflow if isinstance(workflow, str) else None
    return Written(
        domain, difficulty, text, reward_value, right, _finite(info.get("tokens")), _finite(info.get("calls"))
    )


def _finite(value: Any) -> float | None:
    is_finite = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
    return float(value) if is_finite else None


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None


def _order(place: tuple[str, str]) -> tuple[int, str, int, str]:
    domain, difficulty = place
    return _rank(domain, _DOMAINS), domain, _rank(difficulty, _DIFFICULTIES), difficulty


def _rank(name: str, order: tuple[str, ...]) -> int:
    return order.index(name) if name in order else len(order)
