"""Who grades: the first judge that answers, or all of them as a panel; and what happens where none does.

Answers to one prompt are compared with each other, so they are always graded alike: by one judge, or by the same
judges of a panel.  A judge that grades only some of them has graded none.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence

from levelhead.recipe.judge import Judges
from levelhead.tasks.endpoint import BudgetError, EndpointError, all_of
from levelhead.tasks.judges.breaker import FATAL
from levelhead.tasks.judges.member import Outcome
from levelhead.tasks.judges.questions import Asked
from levelhead.tasks.judges.seat import News, Seat

LONGEST_PAUSE_S = 15.0
"""Longest wait between two rounds of asking where no judge answers."""
SHORTEST_TIMEOUT_S = 1.0
"""Least time that one attempt has, whatever ``fallback_after_s`` is."""


class Lineup:
    """The judges of one task.

    Args:
        seats: In order.
        section: How they work together; ``None`` for one judge alone, whose faults are the run's.
    """

    def __init__(self, seats: Sequence[Seat], section: Judges | None) -> None:
        self.seats = list(seats)
        self._section = section
        self.news: list[News] = []
        self.spread: list[float] = []

    async def grade(self, questions: Sequence[Asked], patience_s: float | None = None) -> list[float | None]:
        """Return the grade in [0, 1] of each answer; ``None`` where there is none.

        Args:
            questions: What to grade.
            patience_s: How long to wait where no judge answers, if less than the recipe says.

        Raises:
            EndpointError: No judge can be asked, and waiting is over or of no use.
        """
        if self._section is None:
            (seat,) = self.seats
            return raised(seat.take(await seat.member.outcomes(questions, patience_s)))
        patience = max((seat.member.patience_s for seat in self.seats), default=0.0)
        patience = patience if patience_s is None else min(patience, patience_s)
        verdicts: dict[int, float | None] = {}
        began, pause = time.monotonic(), 0.5
        while True:
            open_ = [i for i in range(len(questions)) if i not in verdicts]
            left = patience - (time.monotonic() - began)
            grades = await self._round([questions[i] for i in open_], waiting=pause > 0.5, left_s=max(left, 0.0))
            verdicts |= {open_[i]: grade for i, grade in grades.items()}
            if len(verdicts) == len(questions):
                return [verdicts[i] for i in range(len(questions))]
            left = patience - (time.monotonic() - began)
            fault = self._fault()
            if left <= 0 or fault.cause in FATAL:
                raise EndpointError(str(fault), fault.cause, fault.fix) from fault
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def take_news(self) -> list[News]:
        """Return what has happened since the last call."""
        news, self.news = self.news, []
        return news

    def _fault(self) -> EndpointError:
        """What to end a run with: the fault that waiting may mend, where there is one."""
        faults = [seat.breaker.fault for seat in self.seats if seat.breaker.fault is not None]
        if not faults:
            raise AssertionError("no judge failed, and answers are without a verdict")
        return min(faults, key=lambda fault: (fault.cause in FATAL, isinstance(fault, BudgetError)))

    async def _round(self, questions: Sequence[Asked], *, waiting: bool, left_s: float) -> dict[int, float | None]:
        """Ask once around; returns the verdicts, by index, on groups that somebody could be asked about."""
        assert self._section is not None  # noqa: S101 - one judge alone has no rounds
        groups: dict[str, list[int]] = {}
        for i, question in enumerate(questions):
            groups.setdefault(question.id, []).append(i)
        if self._section.use == "panel":
            return await self._panel(questions, groups, waiting=waiting, left_s=left_s)
        return await self._in_turn(questions, groups, waiting=waiting, left_s=left_s)

    async def _in_turn(
        self, questions: Sequence[Asked], groups: Mapping[str, list[int]], *, waiting: bool, left_s: float
    ) -> dict[int, float | None]:
        verdicts: dict[int, float | None] = {}
        partial: dict[str, dict[int, float | None]] = {}
        open_ = dict(groups)
        for seat in self.seats:
            if not open_ or not seat.breaker.allows(waiting=waiting):
                continue
            indices = [i for members in open_.values() for i in members]
            outcomes = await self._ask(seat, [questions[i] for i in indices], left_s)
            by_index = dict(zip(indices, outcomes, strict=True))
            for name, members in list(open_.items()):
                mine = {i: by_index[i] for i in members}
                grades = {i: one for i, one in mine.items() if not isinstance(one, EndpointError)}
                if len(grades) == len(mine):
                    best = partial.get(name)
                    if best is None or _count(grades) > _count(best):
                        partial[name] = grades
                    if _count(grades) == len(grades):
                        del open_[name]
        for grades in partial.values():
            verdicts |= grades
        return verdicts

    async def _panel(
        self, questions: Sequence[Asked], groups: Mapping[str, list[int]], *, waiting: bool, left_s: float
    ) -> dict[int, float | None]:
        assert self._section is not None  # noqa: S101 - one judge alone is no panel
        seats = [seat for seat in self.seats if seat.breaker.allows(waiting=waiting)]
        columns = await all_of(self._ask(seat, questions, left_s) for seat in seats)
        verdicts: dict[int, float | None] = {}
        for members in groups.values():
            rows = [(seat, [column[i] for i in members]) for seat, column in zip(seats, columns, strict=True)]
            whole = [(seat, [g for g in row if isinstance(g, float)]) for seat, row in rows]
            whole = [(seat, row) for seat, row in whole if len(row) == len(members)]
            if len(whole) >= self._section.quorum:
                for n, i in enumerate(members):
                    verdicts[i] = self._combine([(seat, row[n]) for seat, row in whole])
            elif reached := [row for _, row in rows if not any(isinstance(g, EndpointError) for g in row)]:
                if len(reached) < self._section.quorum and len(reached) < len(self.seats):
                    continue
                best = max(reached, key=lambda row: sum(isinstance(g, float) for g in row))
                verdicts |= {i: g if isinstance(g, float) else None for i, g in zip(members, best, strict=True)}
        return verdicts

    def _combine(self, grades: Sequence[tuple[Seat, float]]) -> float:
        """Return a panel's grade, and take note of how far its judges are apart."""
        assert self._section is not None  # noqa: S101 - one judge alone is no panel
        values = [grade for _, grade in grades]
        if len(values) > 1:
            self.spread.append(statistics.pstdev(values))
        if self._section.combine == "median":
            return statistics.median(values)
        weights = [seat.weight if self._section.combine == "calibrated" else 1.0 for seat, _ in grades]
        if not sum(weights):
            weights = [1.0] * len(values)
        return sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)

    async def _ask(self, seat: Seat, questions: Sequence[Asked], left_s: float) -> list[Outcome]:
        """Ask one judge, with the patience that the others leave it; the first call alone where it is on trial."""
        assert self._section is not None  # noqa: S101 - one judge alone is asked directly
        others = any(other is not seat and not other.breaker.lost for other in self.seats)
        patience = min(self._section.fallback_after_s, left_s) if others else left_s
        timeout = max(self._section.fallback_after_s, SHORTEST_TIMEOUT_S) if others else None
        outcomes: list[Outcome] = []
        if seat.breaker.open:
            outcomes = await seat.member.outcomes(questions[:1], 0.0, timeout)
            if self.note(seat, outcomes):
                return [*outcomes, *[outcomes[0]] * (len(questions) - 1)]
        rest = questions[len(outcomes) :]
        outcomes += await seat.member.outcomes(rest, patience, timeout) if rest else []
        self.note(seat, outcomes)
        return seat.take(outcomes)

    def note(self, seat: Seat, outcomes: Sequence[Outcome]) -> bool:
        """Open or close a judge's breaker by what asking came to; returns whether it is open."""
        fault = next((one for one in outcomes if isinstance(one, EndpointError)), None)
        title = seat.member.title
        if fault is not None:
            if seat.breaker.trip(fault):
                left = [s.member.title for s in self.seats if not s.breaker.open]
                then = (
                    f"{', '.join(left)} grade{'s' * (len(left) == 1)} without it" if left else "no other judge is left"
                )
                evidence = {"judge": title, "cause": fault.cause, "left": left}
                self.news.append(
                    News("judge-fallback", "warning", f"{title} is not asked for now: {fault}; {then}", evidence)
                )
        elif outcomes and seat.breaker.close():
            self.news.append(
                News("judge-return", "info", f"{title} answers again and is asked again", {"judge": title})
            )
        return seat.breaker.open


def _count(grades: Mapping[int, float | None]) -> int:
    return sum(grade is not None for grade in grades.values())


def raised(outcomes: Sequence[Outcome]) -> list[float | None]:
    """Return grades; of faults, one that is no used-up budget is raised first."""
    faults = [one for one in outcomes if isinstance(one, EndpointError)]
    if faults:
        raise min(faults, key=lambda fault: isinstance(fault, BudgetError))
    return [one for one in outcomes if not isinstance(one, EndpointError)]
