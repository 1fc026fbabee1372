"""A judge that compares two answers, asked about each pair in both orders, so that their places decide nothing."""

from __future__ import annotations

from collections.abc import Sequence

from levelhead.tasks.endpoint import EndpointError
from levelhead.tasks.judges.member import Member, Outcome
from levelhead.tasks.judges.questions import Asked, Pair

TIE = 0.5


class BothOrders(Member):
    """Puts each pair to a judge twice, once in each order (Zheng et al. 2023, "Judging LLM-as-a-Judge with MT-Bench").

    An answer wins where the judge prefers it in both orders; where the two verdicts contradict each other, the pair is
    a tie and is counted as turned.  A pair without a verdict in one of the orders has none.  Two equal answers tie, and
    cost nothing.

    Args:
        member: The judge: it returns how the first answer of a :class:`Pair` fares.
    """

    def __init__(self, member: Member) -> None:
        super().__init__(member.title)
        self.member, self.usage = member, member.usage

    @property
    def concurrency(self) -> int:
        """Calls under way at once."""
        return self.member.concurrency

    @property
    def patience_s(self) -> float:
        """How long its silence is waited out."""
        return self.member.patience_s

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Return what some tokens cost at the recipe's prices."""
        return self.member.cost(prompt_tokens, completion_tokens)

    def close(self) -> None:
        """Let go of files."""
        self.member.close()

    async def outcomes(
        self, questions: Sequence[Asked], patience_s: float | None = None, timeout_s: float | None = None
    ) -> list[Outcome]:
        """Return how the first answer of each pair fares: 1, 0.5 or 0."""
        pairs = [question for question in questions if isinstance(question, Pair)]
        open_ = [pair for pair in pairs if pair.first != pair.second]
        asked = [ordered for pair in open_ for ordered in (pair, pair.turned)]
        ends = await self.member.outcomes(asked, patience_s, timeout_s) if asked else []
        self.said = self.member.said
        results = iter([self._settle(*ends[2 * n : 2 * n + 2]) for n in range(len(open_))])
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
