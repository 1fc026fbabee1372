"""Which workflow a policy chooses for which class of problems, and what that costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from levelhead.contrib.workflow.analysis.census import Census, census

_LARGEST = 1e60
_DOMAINS = ("math", "code", "qa")
_DIFFICULTIES = ("easy", "medium", "hard")


@dataclass(frozen=True, slots=True)
class Written:
    """One scored answer.

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
        return {
            "domain": self.domain,
            "difficulty": self.difficulty,
            "answers": self.answers.to_json(),
            "reward": self.reward,
            "accuracy": self.accuracy,
            "tokens": self.tokens,
            "calls": self.calls,
        }

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
    return [_choice(*place, groups[place]) for place in sorted(groups, key=_order)]


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
    return Written(domain, difficulty, text, reward_value, right, _number(info, "tokens"), _number(info, "calls"))


def _number(info: Mapping[str, Any], name: str) -> float | None:
    return _finite(info.get(name))


def _finite(value: Any) -> float | None:
    is_finite = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
    return float(value) if is_finite else None


def _choice(domain: str, difficulty: str, answers: list[Written]) -> Choice:
    return Choice(
        domain,
        difficulty,
        census(answer.workflow for answer in answers),
        fmean(answer.reward for answer in answers),
        fmean(answer.right for answer in answers),
        _mean(answer.tokens for answer in answers),
        _mean(answer.calls for answer in answers),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None


def _order(place: tuple[str, str]) -> tuple[int, str, int, str]:
    domain, difficulty = place
    return _rank(domain, _DOMAINS), domain, _rank(difficulty, _DIFFICULTIES), difficulty


def _rank(name: str, order: tuple[str, ...]) -> int:
    return order.index(name) if name in order else len(order)
