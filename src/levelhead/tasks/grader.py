"""Judging as a step of scoring: what a task's scoring calls after its rules, and the metrics of grades."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from levelhead.metrics import held_out
from levelhead.records import Event, Message, Prompt, Rollout, Score
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
    turns: tuple[Message, ...] = ()


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


class Grader(ABC):
    """Grades answers that a task's rules find right, as a step of scoring: a grade only takes away.

    Attributes:
        asks: Whether judges are asked; where a preflight finds that no endpoint answers, the rules go on alone.
    """

    asks: bool = True

    @property
    @abstractmethod
    def concurrency(self) -> int:
        """Calls under way at once."""

    @property
    @abstractmethod
    def last_failure(self) -> str:
        """The last reply without a grade."""

    @property
    @abstractmethod
    def titles(self) -> Sequence[str]:
        """Names of the judges, where there are several to be distinguished."""

    @property
    @abstractmethod
    def refusals(self) -> Mapping[str, Sequence[str]]:
        """Why calibrations say that judges are not worth asking, by judge."""

    @abstractmethod
    async def weigh(self, answers: Sequence[Answer], scores: Sequence[Score | None]) -> list[Score | None]:
        """Return the rules' scores with grades put on those above 0; ``None`` for a rollout that must be dropped.

        Raises:
            RewardError: The judge refuses or stays silent, or the budget is used up.
        """

    @abstractmethod
    async def grade(self, answers: Sequence[Answer], patience_s: float | None = None) -> list[float | None]:
        """Return the judge's grade in [0, 1] of each answer, right or wrong; ``None`` where it gives none.

        Args:
            answers: What to grade.
            patience_s: How long to wait for a silent judge, if less than the recipe says.

        Raises:
            RewardError: The judge refuses or stays silent, or the budget is used up.
        """

    @abstractmethod
    async def grade_by(self, title: str, answers: Sequence[Answer], patience_s: float) -> list[float | None]:
        """Return one judge's own grades; see :meth:`grade`."""

    @abstractmethod
    def at_step(self, step: int, max_steps: int) -> None:
        """Note that ``step`` of the stage's ``max_steps`` steps are done."""

    @abstractmethod
    def drain_events(self, step: int) -> list[Event]:
        """Return what happened since the last call, dated ``step``."""

    @abstractmethod
    def drain_use(self) -> JudgeUse:
        """Return what judges did and cost since the last call."""

    @abstractmethod
    async def close(self) -> None:
        """Close files; they are opened again if judges are asked again."""


def grade_metrics(results: Sequence[tuple[Prompt, Rollout]]) -> dict[str, float]:
    """Return the mean grade of judged answers and the share of verdicts without one; nothing where none was judged."""
    verdicts = [r.score.info[GRADE] for _, r in results if r.score is not None and GRADE in r.score.info]
    grades = [grade for grade in verdicts if grade is not None]
    metrics = {held_out.JUDGE_ERROR_RATE: 1 - len(grades) / len(verdicts)} if verdicts else {}
    return metrics | ({held_out.GRADE: math.fsum(grades) / len(grades)} if grades else {})
