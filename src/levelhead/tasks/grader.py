"""Judging as a step of scoring: what is graded, by what, and the metrics of grades."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from levelhead.metrics import held_out
from levelhead.records import ChatMessage, Event, Prompt, Rollout, Score
from levelhead.tasks.metering import JudgeUse


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion to be scored.

    Attributes:
        prompt: What was asked.
        text: The completion, decoded, without its stop token.
        token_ids: The completion as it was drawn.
        turns: Messages of the turns before it: calls of tools, and their results.
    """

    prompt: Prompt
    text: str
    token_ids: tuple[int, ...] = ()
    turns: tuple[ChatMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class LabelledAnswer:
    """An answer that people have graded.

    Attributes:
        text: The answer.
        meets: Names of the criteria that it meets; it meets no other one of its row.
    """

    text: str
    meets: frozenset[str]


GRADE = "judge"
"""Name of the reward that a judge gives; only answers that it was shown have it."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing that an answer is graded by.

    Attributes:
        name: In metrics; empty where the grade has no part of its own.
        text: What a judge is told to grade.
        weight: In the mean of the grades.
    """

    name: str
    text: str
    weight: float


class Grader(Protocol):
    """What a task asks of the judges that grade its right answers (:class:`~levelhead.tasks.judges.JudgeGrader`)."""

    concurrency: int
    """Calls under way at once."""

    async def weigh(self, answers: Sequence[Answer], scores: Sequence[Score | None]) -> list[Score | None]:
        """Return the rules' scores with grades put on those above 0; ``None`` for a rollout that must be dropped."""

    def at_step(self, step: int, max_steps: int) -> None:
        """Note that ``step`` of the stage's ``max_steps`` steps are done."""

    def drain_events(self, step: int) -> list[Event]:
        """Return what happened since the last call, dated ``step``."""

    def drain_use(self) -> JudgeUse:
        """Return what judges did and cost since the last call."""

    async def close(self) -> None:
        """Close files; they are opened again if judges are asked again."""


def grade_metrics(results: Sequence[tuple[Prompt, Rollout]]) -> dict[str, float]:
    """Return the mean grade of judged answers and the share of verdicts without one; nothing where none was judged."""
    verdicts = [r.score.info[GRADE] for _, r in results if r.score is not None and GRADE in r.score.info]
    grades = [grade for grade in verdicts if grade is not None]
    metrics = {held_out.JUDGE_ERROR_RATE: 1 - len(grades) / len(verdicts)} if verdicts else {}
    return metrics | ({held_out.GRADE: math.fsum(grades) / len(grades)} if grades else {})
