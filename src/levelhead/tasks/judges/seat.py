"""A judge in its place among others: whether it is asked, on which scale its grades are, and what it has done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from levelhead.records import Severity
from levelhead.tasks.endpoint import EndpointError
from levelhead.tasks.judges.breaker import Breaker
from levelhead.tasks.judges.member import Member, Outcome
from levelhead.tasks.metering import JudgeUse


@dataclass(frozen=True, slots=True)
class News:
    """Something that happened to a judge.

    Attributes:
        code: Of the event that it becomes.
        severity: How bad it is.
        message: One line.
        evidence: The numbers.
    """

    code: str
    severity: Severity
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Seat:
    """A judge in its place.

    Attributes:
        member: The judge.
        breaker: Whether it is asked.
        scale: From its grades to the common scale.
        weight: In a panel that weighs.
        refused: Why its calibration says that it is not worth asking; empty where it passed, or there was none.
        asked: Verdicts that it was asked for, and gave or did not.
        failed: Those among them without a grade.
        grades: Sum of those that it gave, on the common scale.
        drift: Change of its mean grade on the anchors, until it is taken.
    """

    member: Member
    breaker: Breaker
    scale: Callable[[float], float] = float
    weight: float = 1.0
    refused: tuple[str, ...] = ()
    asked: int = 0
    failed: int = 0
    grades: float = 0.0
    drift: float | None = None

    def take(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Return outcomes on the common scale, and count them."""
        scaled = [self.scale(one) if isinstance(one, float) else one for one in outcomes]
        given = [one for one in scaled if isinstance(one, float)]
        self.failed += sum(one is None for one in scaled)
        self.asked += sum(not isinstance(one, EndpointError) for one in scaled)
        self.grades += sum(given)
        return scaled

    def drain(self) -> JudgeUse:
        """Return the verdicts since the last call, and how the judge stands."""
        member = self.member
        use = JudgeUse(verdicts=self.asked, failures=self.failed, grades=self.grades)
        use.pairs, use.turned, use.ties = member.pairs, member.turned, member.ties
        member.pairs = member.turned = member.ties = 0
        use.down, use.drift = self.breaker.open, self.drift
        self.asked, self.failed, self.grades, self.drift = 0, 0, 0.0, None
        return use
