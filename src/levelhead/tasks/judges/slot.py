"""A judge in its place among others: whether and in which orders it is asked, its scale, and what it has done."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from levelhead.tasks.endpoint import BudgetError, EndpointError
from levelhead.tasks.judges.member import Member, Outcome
from levelhead.tasks.judges.questions import Asked, Pair
from levelhead.tasks.metering import JudgeUse

LONGEST_REST_S = 600.0
"""Longest time that a judge is left alone before it is tried again."""
FATAL = frozenset({"authentication", "refusal", "budget"})
"""Causes of failures that no waiting mends."""


class CircuitBreaker:
    """Opens when a judge fails, lets one call through after a rest, and closes when that is answered (Nygard 2007).

    Args:
        rest_s: The first rest; doubled, up to ten minutes, each time that the call after it fails.
    """

    def __init__(self, rest_s: float) -> None:
        self._first_s = self._rest_s = rest_s
        self._until = -math.inf
        self.fault: EndpointError | None = None

    @property
    def open(self) -> bool:
        """Whether the judge has failed and has not answered since."""
        return self.fault is not None

    @property
    def lost(self) -> bool:
        """Whether it has failed in a way that no waiting mends."""
        return self.fault is not None and self.fault.cause in FATAL

    def allows(self, *, waiting: bool = False) -> bool:
        """Whether it may be asked: it answers, or has rested.

        Args:
            waiting: Whether no other judge is left, so that it is tried without a rest.
        """
        spent = isinstance(self.fault, BudgetError)  # which no waiting changes
        return not self.open or (not spent and (waiting or time.monotonic() >= self._until))

    def trip(self, fault: EndpointError) -> bool:
        """Take note of a failure; returns whether it is news."""
        news = not self.open
        self._rest_s = self._first_s if news else min(2 * self._rest_s, max(LONGEST_REST_S, self._first_s))
        self._until, self.fault = time.monotonic() + self._rest_s, fault
        return news

    def close(self) -> bool:
        """Take note of an answer; returns whether it is news."""
        news, self.fault = self.open, None
        return news


TIE = 0.5


@dataclass(slots=True)
class Slot:
    """A judge in its place.

    Attributes:
        member: The judge.
        breaker: Whether it is asked.
        pairwise: Whether it compares two answers, each pair in both orders so that their places decide nothing.
        scales: From its grades to the common scale, by criterion; of whole rubrics under the empty name.
        weight: In a panel that weighs.
        refused: Why its calibration says that it is not worth asking; empty where it passed, or there was none.
        use: What it has done since it was last drained, its grades on the common scale.
    """

    member: Member
    breaker: CircuitBreaker
    pairwise: bool = False
    scales: Mapping[str, Callable[[float], float]] = field(default_factory=dict)
    weight: float = 1.0
    refused: tuple[str, ...] = ()
    use: JudgeUse = field(default_factory=JudgeUse)

    async def outcomes(
        self, questions: Sequence[Asked], patience_s: float | None = None, timeout_s: float | None = None
    ) -> list[Outcome]:
        """Return what asking for each grade came to, in order and not yet on the common scale.

        Each pair is put to the judge twice, once in each order (Zheng et al. 2023, "Judging LLM-as-a-Judge with
        MT-Bench"); its first answer fares 1, 0.5 or 0.  An answer wins where the judge prefers it in both orders; where
        the two verdicts contradict each other, the pair is a tie and is counted as turned.  A pair without a verdict
        in one of the orders has none.  Two equal answers tie, and cost nothing.

        Args:
            questions: What to grade.
            patience_s: How long to wait for silence to end, if less than the recipe says.
            timeout_s: Longest time for one attempt, if less than the recipe says.

        Raises:
            InputError: What the recipe names cannot be used.
        """
        if not self.pairwise:
            return await self.member.outcomes(questions, patience_s, timeout_s)
        pairs = [question for question in questions if isinstance(question, Pair)]
        different = [pair for pair in pairs if pair.first != pair.second]
        asked = [ordered for pair in different for ordered in (pair, pair.turned)]
        ends = await self.member.outcomes(asked, patience_s, timeout_s) if asked else []
        results = iter([self._settle(*ends[2 * n : 2 * n + 2]) for n in range(len(different))])
        return [TIE if pair.first == pair.second else next(results) for pair in pairs]

    def _settle(self, straight: Outcome, turned: Outcome) -> Outcome:
        for one in (straight, turned):
            if isinstance(one, EndpointError):
                return one
        outcome = settled(straight, turned)
        if outcome is not None:
            self.use.pairs += 1
            self.use.turned += not _agree(straight, turned)
            self.use.ties += _side(outcome) == 0
        return outcome

    def scaled(self, questions: Sequence[Asked], outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Return outcomes on the common scale; a criterion that was not calibrated has none and keeps its grades."""
        scales = [self.scales.get(getattr(question, "criterion", ""), float) for question in questions]
        return [scale(one) if isinstance(one, float) else one for scale, one in zip(scales, outcomes, strict=True)]

    def take(self, questions: Sequence[Asked], outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Return outcomes on the common scale, and count them."""
        scaled = self.scaled(questions, outcomes)
        self.use.failures += sum(one is None for one in scaled)
        self.use.verdicts += sum(not isinstance(one, EndpointError) for one in scaled)
        self.use.grades += sum(one for one in scaled if isinstance(one, float))
        return scaled

    def drain(self) -> JudgeUse:
        """Return the verdicts since the last call, and how the judge stands."""
        use, self.use = self.use, JudgeUse()
        use.down = self.breaker.open
        return use


def settled(straight: Outcome, turned: Outcome) -> float | None:
    """Return how an answer fares by two verdicts; ``None`` where one is missing.

    Args:
        straight: On the pair with the answer first: 1 where it is better.
        turned: On the pair with it second: 0 where it is better.
    """
    if not isinstance(straight, float) or not isinstance(turned, float):
        return None
    return (straight + 1 - turned) / 2 if _agree(straight, turned) else TIE


def _agree(straight: Outcome, turned: Outcome) -> bool:
    return isinstance(straight, float) and isinstance(turned, float) and _side(straight) == -_side(turned)


def _side(outcome: float) -> int:
    """1 where the first answer is better, -1 where the second one is, 0 for a tie."""
    return (outcome > TIE) - (outcome < TIE)
