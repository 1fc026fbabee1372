"""Who grades: the first judge that answers, or all of them as a panel; and what happens where none does.

Answers to one prompt are compared with each other, so they are always graded alike: by one judge, or by the same
judges of a panel.  A judge that grades only some of them has graded none.
"""

from __future__ import annotations

import asyncio
import hashlib
import statistics
import time
from collections.abc import Mapping, Sequence

import httpx2

from levelhead.errors import InputError
from levelhead.recipe.judge import FunctionJudge, Judge, JudgeEndpoint, Judges
from levelhead.records import Event
from levelhead.tasks.endpoint import BudgetError, EndpointError
from levelhead.tasks.judges.calibration import fingerprint, read_calibrations
from levelhead.tasks.judges.member import EndpointMember, FunctionMember, Member, Outcome
from levelhead.tasks.judges.questions import Asked
from levelhead.tasks.judges.slot import FATAL, CircuitBreaker, Slot
from levelhead.waiting import all_of

LONGEST_PAUSE_S = 15.0
"""Longest wait between two rounds of asking where no judge answers."""
SHORTEST_TIMEOUT_S = 1.0
"""Least time that one attempt has, whatever ``fallback_after_s`` is."""


class Panel:
    """The judges of one task.

    Args:
        slots: In order.
        section: How they work together; ``None`` for one judge alone, whose faults are the run's.

    Attributes:
        events: What happened to judges since this was last emptied, of step 0.
        spread: Standard deviation of the judges' grades, by answer since this was last emptied.
    """

    def __init__(self, slots: Sequence[Slot], section: Judges | None) -> None:
        self.slots = list(slots)
        self._section = section
        self.events: list[Event] = []
        self.spread: list[float] = []

    async def grade(self, questions: Sequence[Asked], patience_s: float | None = None) -> list[float | None]:
        """Return the grade in [0, 1] of each answer; ``None`` where there is none.

        Args:
            questions: What to grade.
            patience_s: How long to wait where no judge answers, if less than the recipe says.

        Raises:
            EndpointError: No judge can be asked, and waiting is over or of no use.
        """
        section = self._section
        if section is None:
            (slot,) = self.slots
            return raised(slot.take(questions, await slot.outcomes(questions, patience_s)))
        patience = max((slot.member.patience_s for slot in self.slots), default=0.0)
        patience = patience if patience_s is None else min(patience, patience_s)
        verdicts: dict[int, float | None] = {}
        began, pause = time.monotonic(), 0.5
        while True:
            open_ = [i for i in range(len(questions)) if i not in verdicts]
            remaining = patience - (time.monotonic() - began)
            ask = self._ask_all if section.use == "panel" else self._ask_in_turn
            some = [questions[i] for i in open_]
            grades = await ask(section, some, waiting=pause > 0.5, left_s=max(remaining, 0.0))
            verdicts |= {open_[i]: grade for i, grade in grades.items()}
            if len(verdicts) == len(questions):
                return [verdicts[i] for i in range(len(questions))]
            remaining = patience - (time.monotonic() - began)
            fault = self._fault()
            if remaining <= 0 or fault.cause in FATAL:
                raise EndpointError(str(fault), fault.cause, fault.fix) from fault
            await asyncio.sleep(min(pause, remaining))
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _fault(self) -> EndpointError:
        """What to end a run with: the fault that waiting may mend, where there is one."""
        faults = [slot.breaker.fault for slot in self.slots if slot.breaker.fault is not None]
        if not faults:
            raise AssertionError("no judge failed, and answers are without a verdict")
        return min(faults, key=lambda fault: (fault.cause in FATAL, isinstance(fault, BudgetError)))

    async def _ask_in_turn(
        self, section: Judges, questions: Sequence[Asked], *, waiting: bool, left_s: float
    ) -> dict[int, float | None]:
        """Ask judges one after the other, each about the groups that are still open; returns verdicts by index."""
        partial: dict[str, dict[int, float | None]] = {}
        open_ = _by_prompt(questions)
        for slot in self.slots:
            if not open_ or not slot.breaker.allows(waiting=waiting):
                continue
            indices = [i for members in open_.values() for i in members]
            outcomes = await self._ask(section, slot, [questions[i] for i in indices], left_s)
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
        return {i: grade for grades in partial.values() for i, grade in grades.items()}

    async def _ask_all(
        self, section: Judges, questions: Sequence[Asked], *, waiting: bool, left_s: float
    ) -> dict[int, float | None]:
        """Ask all judges at once, and combine their grades; returns verdicts by index."""
        slots = [slot for slot in self.slots if slot.breaker.allows(waiting=waiting)]
        columns = await all_of((self._ask(section, slot, questions, left_s) for slot in slots), BudgetError)
        verdicts: dict[int, float | None] = {}
        for members in _by_prompt(questions).values():
            rows = [(slot, [column[i] for i in members]) for slot, column in zip(slots, columns, strict=True)]
            whole = [(slot, [g for g in row if isinstance(g, float)]) for slot, row in rows]
            whole = [(slot, row) for slot, row in whole if len(row) == len(members)]
            if len(whole) >= section.quorum:
                for n, i in enumerate(members):
                    verdicts[i] = self._combine(section, [(slot, row[n]) for slot, row in whole])
            elif reached := [row for _, row in rows if not any(isinstance(g, EndpointError) for g in row)]:
                if len(reached) < section.quorum and len(reached) < len(self.slots):
                    continue
                best = max(reached, key=lambda row: sum(isinstance(g, float) for g in row))
                verdicts |= {i: g if isinstance(g, float) else None for i, g in zip(members, best, strict=True)}
        return verdicts

    def _combine(self, section: Judges, grades: Sequence[tuple[Slot, float]]) -> float:
        """Return a panel's grade, and note how far its judges are apart."""
        values = [grade for _, grade in grades]
        if len(values) > 1:
            self.spread.append(statistics.pstdev(values))
        if section.combine == "median":
            return statistics.median(values)
        weights = [slot.weight if section.combine == "calibrated" else 1.0 for slot, _ in grades]
        if not sum(weights):
            weights = [1.0] * len(values)
        return sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)

    async def _ask(self, section: Judges, slot: Slot, questions: Sequence[Asked], left_s: float) -> list[Outcome]:
        """Ask one judge, with the patience that the others leave it; the first call alone where it is on trial."""
        others = any(other is not slot and not other.breaker.lost for other in self.slots)
        patience = min(section.fallback_after_s, left_s) if others else left_s
        timeout = max(section.fallback_after_s, SHORTEST_TIMEOUT_S) if others else None
        outcomes: list[Outcome] = []
        if slot.breaker.open:
            outcomes = await slot.outcomes(questions[:1], 0.0, timeout)
            if self.note(slot, outcomes):
                return [*outcomes, *[outcomes[0]] * (len(questions) - 1)]
        rest = questions[len(outcomes) :]
        outcomes += await slot.outcomes(rest, patience, timeout) if rest else []
        self.note(slot, outcomes)
        return slot.take(questions, outcomes)

    def note(self, slot: Slot, outcomes: Sequence[Outcome]) -> bool:
        """Open or close a judge's breaker by what asking came to; returns whether it is open."""
        fault = next((one for one in outcomes if isinstance(one, EndpointError)), None)
        title = slot.member.title
        if fault is not None:
            if slot.breaker.trip(fault):
                remaining = [s.member.title for s in self.slots if not s.breaker.open]
                alone = f"{', '.join(remaining)} grade{'s' * (len(remaining) == 1)} without it"
                then = alone if remaining else "no other judge is left"
                evidence = {"judge": title, "cause": fault.cause, "left": remaining}
                message = f"{title} is not asked for now: {fault}; {then}"
                self.events.append(Event(0, "judge-fallback", "warning", message, evidence=evidence))
        elif outcomes and slot.breaker.close():
            message = f"{title} answers again and is asked again"
            self.events.append(Event(0, "judge-return", "info", message, evidence={"judge": title}))
        return slot.breaker.open


def _by_prompt(questions: Sequence[Asked]) -> dict[str, list[int]]:
    """Indices of the questions about each prompt."""
    groups: dict[str, list[int]] = {}
    for i, question in enumerate(questions):
        groups.setdefault(question.id, []).append(i)
    return groups


def _count(grades: Mapping[int, float | None]) -> int:
    return sum(grade is not None for grade in grades.values())


def raised(outcomes: Sequence[Outcome]) -> list[float | None]:
    """Return grades; of faults, one that is no used-up budget is raised first."""
    faults = [one for one in outcomes if isinstance(one, EndpointError)]
    if faults:
        raise min(faults, key=lambda fault: isinstance(fault, BudgetError))
    return [one for one in outcomes if not isinstance(one, EndpointError)]


def make_panel(
    section: Judge | Judges, task: str, rubric: str, transport: httpx2.AsyncBaseTransport | None = None
) -> Panel:
    """Return the judges that a recipe names, on the common scale of their calibration where it names one.

    Args:
        section: ``judge``, a single one, or ``judges``.
        task: Name of the task that they judge.
        rubric: What they grade.
        transport: Another way to the endpoints than the network, for tests.

    Raises:
        InputError: A cache of replies cannot be opened, a function is not there, or the calibration is not there or is
            another one's.
    """
    pairs = section.pairwise is not None
    if isinstance(section, Judge):
        alone = EndpointMember(section, "tasks[].judge", "", transport, pairs=pairs)
        return Panel([Slot(alone, CircuitBreaker(1.0), pairs)], None)
    members = [
        _member(one, f"tasks[].judges.members[{i}]", transport, pairs=pairs) for i, one in enumerate(section.members)
    ]
    slots = [Slot(member, CircuitBreaker(section.retry_after_s), pairs) for member in members]
    if section.calibration is not None:
        _calibrate(slots, section, section.calibration, task, rubric)
    return Panel(slots, section)


def _calibrate(slots: Sequence[Slot], section: Judges, path: str, task: str, rubric: str) -> None:
    """Take the judges' scales and weights from a file of calibrations."""
    calibrations = read_calibrations(path)
    for slot, one in zip(slots, section.members, strict=True):
        entry = calibrations.of(task, one.title)
        if entry is None or entry.fingerprint != fingerprint(one, rubric, pairs=section.pairwise is not None):
            changed = "has changed since, or its rubric or the way that it is asked has"
            raise InputError(
                f"{path}: the judge {one.title} of {task} {'is not in it' if entry is None else changed} "
                "(tasks[].judges.calibration); 'levelhead judge calibrate RECIPE' writes it anew"
            )
        slot.scales, slot.weight, slot.refused = entry.scales, entry.weight, tuple(entry.refused)


def _member(
    section: JudgeEndpoint | FunctionJudge, where: str, transport: httpx2.AsyncBaseTransport | None, *, pairs: bool
) -> Member:
    if isinstance(section, FunctionJudge):
        return FunctionMember(section, where)
    # Models of one name at two addresses are two judges, which may share a cache.
    salt = hashlib.sha256(f"{section.provider} {section.base_url.rstrip('/')}".encode()).hexdigest()[:8]
    return EndpointMember(section, where, f"{salt}/", transport, pairs=pairs)
