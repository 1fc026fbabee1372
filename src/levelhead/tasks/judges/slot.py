"""A judge in its place among others: in which orders it is asked, on which scale its grades are, what it has done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from levelhead.tasks.endpoint import EndpointError
from levelhead.tasks.judges.circuit_breaker import CircuitBreaker
from levelhead.tasks.judges.member import Member, Outcome
from levelhead.tasks.judges.questions import Asked, Pair
from levelhead.tasks.metering import JudgeUse

TIE = 0.5


@dataclass(slots=True)
class Slot:
    """A judge in its place.

    Attributes:
        member: The judge.
        breaker: Whether it is asked.
        pairwise: Whether it compares two answers, each pair in both orders so that their places decide nothing.
        scale: From its grades to the common scale.
        weight: In a panel that weighs.
        refused: Why its calibration says that it is not worth asking; empty where it passed, or there was none.
        asked: Verdicts that it was asked for, and gave or did not.
        failed: Those among them without a grade.
        grades: Sum of those that it gave, on the common scale.
        drift: Change of its mean grade on the anchors, until it is drained.
        pairs: Pairs of answers that it compared, equal ones left out.
        turned: Those among them that it decided otherwise when they changed places.
        ties: Those that are ties, the turned ones included.
    """

    member: Member
    breaker: CircuitBreaker
    pairwise: bool = False
    scale: Callable[[float], float] = float
    weight: float = 1.0
    refused: tuple[str, ...] = ()
    asked: int = 0
    failed: int = 0
    grades: float = 0.0
    drift: float | None = None
    pairs: int = 0
    turned: int = 0
    ties: int = 0

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
            self.pairs += 1
            self.turned += not _agree(straight, turned)
            self.ties += _side(outcome) == 0
        return outcome

    def take(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Return outcomes on the common scale, and count them."""
        scaled = [self.scale(one) if isinstance(one, float) else one for one in outcomes]
        self.failed += sum(one is None for one in scaled)
        self.asked += sum(not isinstance(one, EndpointError) for one in scaled)
        self.grades += sum(one for one in scaled if isinstance(one, float))
        return scaled

    def drain(self) -> JudgeUse:
        """Return the verdicts since the last call, and how the judge stands."""
        use = JudgeUse(verdicts=self.asked, failures=self.failed, grades=self.grades)
        use.pairs, use.turned, use.ties = self.pairs, self.turned, self.ties
        use.down, use.drift = self.breaker.open, self.drift
        self.asked = self.failed = self.pairs = self.turned = self.ties = 0
        self.grades, self.drift = 0.0, None
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
