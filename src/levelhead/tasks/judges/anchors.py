"""Whether a judge is still the one that training began with: its grades of a fixed set of answers, again and again."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import TYPE_CHECKING

from levelhead.recipe.judge import Anchors
from levelhead.tasks.judges.labelled import PLAIN, labelled_cases
from levelhead.tasks.judges.member import Outcome
from levelhead.tasks.judges.seat import News, Seat

if TYPE_CHECKING:
    from levelhead.tasks.base import Answer
    from levelhead.tasks.judges.task import JudgedTask

_LENDERS = 64
_PATIENCE_S = 5.0
"""Longest wait for a silent judge: anchors are asked beside the work, and can be left out."""


class AnchorSet:
    """A fixed set of answers, and what each judge first made of them.

    The answers are perfect, subtly wrong, empty and off-topic ones to the first training prompts (seed 0).  Each is
    asked about at the first step that is scored and then every so many steps, each time anew: a ``cache`` answers only
    what was asked at the same step before, so that a resumed run has the same first grades and drifts.

    Args:
        section: How many answers, how often they are asked about, and what is a drift.
    """

    def __init__(self, section: Anchors) -> None:
        self._section = section
        self._answers: list[Answer] | None = None
        self._first: dict[str, list[float | None]] = {}
        self._due: int | None = None
        self._asked = -1

    def at_step(self, step: int, max_steps: int) -> None:
        """Take note that so many steps are done; an evaluation, which scores as at the end, is no occasion."""
        if step % self._section.every == 0 and self._asked != step < max_steps:
            self._due = step

    async def ask(self, task: JudgedTask) -> list[News]:
        """Ask about the anchors where they are due; returns what is news: a judge whose grades have moved."""
        step, self._due = self._due, None
        if step is None:
            return []
        self._asked = step
        news: list[News] = []
        for seat in task.lineup.seats:
            if seat.breaker.open:
                continue
            title = seat.member.title
            if title not in self._first:
                self._first[title] = await self._grades(task, seat, 0)
            if step:
                news += self._compare(seat, await self._grades(task, seat, step))
        return news

    async def _grades(self, task: JudgedTask, seat: Seat, step: int) -> list[float | None]:
        questions = [task.question(answer, f"anchor/{step}") for answer in self._set(task)]
        outcomes: list[Outcome] = await seat.member.outcomes(questions, _PATIENCE_S, _PATIENCE_S) if questions else []
        return [seat.scale(one) if isinstance(one, float) else None for one in outcomes]

    def _set(self, task: JudgedTask) -> list[Answer]:
        if self._answers is None:
            prompts = list(itertools.islice(task.task.prompts("train", 0), _LENDERS))
            cases = labelled_cases(task.task, prompts, self._section.items)
            self._answers = [case.answer for case in cases if case.kind in PLAIN][: self._section.items]
        return self._answers

    def _compare(self, seat: Seat, now: list[float | None]) -> list[News]:
        title = seat.member.title
        pairs = zip(self._first[title], now, strict=True)
        changes = [b - a for a, b in pairs if a is not None and b is not None]
        if not changes:
            return []
        drift = seat.drift = statistics.fmean(changes)
        error = statistics.stdev(changes) / math.sqrt(len(changes)) if len(changes) > 1 else math.inf
        if abs(drift) <= self._section.drift or abs(drift) <= 2 * error:
            return []
        message = (
            f"{title} grades the same {len(changes)} answers {drift:+.2f} from what it gave them at first "
            f"(standard error {error:.2f}): the provider may have changed the model; calibrate it again"
        )
        evidence = {"judge": title, "drift": drift, "error": error, "answers": len(changes)}
        return [News("judge-drift", "warning", message, evidence)]
