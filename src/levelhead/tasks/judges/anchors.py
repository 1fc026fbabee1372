"""Whether a judge is still the one that training began with: its grades of a fixed set of answers, again and again."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable

from levelhead.recipe.judge import Anchors
from levelhead.records import Event
from levelhead.tasks.base import Answer, SingleTurnTask
from levelhead.tasks.judges.labelled import PLAIN, labelled_cases
from levelhead.tasks.judges.member import Outcome
from levelhead.tasks.judges.panel import Panel
from levelhead.tasks.judges.questions import Asked
from levelhead.tasks.judges.slot import Slot

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
        task: Whose first training prompts the answers are to.
        question: From an answer and the occasion to what a judge is asked.
    """

    def __init__(self, section: Anchors, task: SingleTurnTask, question: Callable[[Answer, str], Asked]) -> None:
        self._section, self._task, self._question = section, task, question
        self._answers: list[Answer] | None = None
        self._first: dict[str, list[float | None]] = {}
        self._due: int | None = None
        self._asked = -1

    def at_step(self, step: int, max_steps: int) -> None:
        """Take note that so many steps are done; an evaluation, which scores as at the end, is no occasion."""
        if step % self._section.every == 0 and self._asked != step < max_steps:
            self._due = step

    async def ask(self, panel: Panel) -> None:
        """Ask about the anchors where they are due; a judge whose grades have moved is an event of the panel."""
        step, self._due = self._due, None
        if step is None:
            return
        self._asked = step
        for slot in panel.slots:
            if slot.breaker.open:
                continue
            title = slot.member.title
            if title not in self._first:
                first = await self._grades(panel, slot, 0)
                if first is None:
                    continue
                self._first[title] = first
            if step and (now := await self._grades(panel, slot, step)) is not None:
                panel.events += self._compare(slot, now)

    async def _grades(self, panel: Panel, slot: Slot, step: int) -> list[float | None] | None:
        """Return the grades of the anchors; ``None`` where the judge cannot be asked, which leaves it alone."""
        questions = [self._question(answer, f"anchor/{step}") for answer in self._set()]
        outcomes: list[Outcome] = await slot.outcomes(questions, _PATIENCE_S, _PATIENCE_S) if questions else []
        if panel.note(slot, outcomes):
            return None
        return [slot.scale(one) if isinstance(one, float) else None for one in outcomes]

    def _set(self) -> list[Answer]:
        if self._answers is None:
            prompts = list(itertools.islice(self._task.prompts("train", 0), _LENDERS))
            cases = labelled_cases(self._task, prompts, self._section.items)
            self._answers = [case.answer for case in cases if case.kind in PLAIN][: self._section.items]
        return self._answers

    def _compare(self, slot: Slot, now: list[float | None]) -> list[Event]:
        title = slot.member.title
        pairs = zip(self._first[title], now, strict=True)
        changes = [b - a for a, b in pairs if a is not None and b is not None]
        if not changes:
            return []
        drift = slot.drift = statistics.fmean(changes)
        error = statistics.stdev(changes) / math.sqrt(len(changes)) if len(changes) > 1 else math.inf
        if abs(drift) <= self._section.drift or abs(drift) <= 2 * error:
            return []
        message = (
            f"{title} grades the same {len(changes)} answers {drift:+.2f} from what it gave them at first "
            f"(standard error {error:.2f}): the provider may have changed the model; calibrate it again"
        )
        evidence = {"judge": title, "drift": drift, "error": error, "answers": len(changes)}
        return [Event(0, "judge-drift", "warning", message, evidence=evidence)]
