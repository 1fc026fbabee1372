"""From a recipe's sections to the judges of a task."""

from __future__ import annotations

import hashlib

import httpx2

from levelhead.errors import InputError
from levelhead.recipe.judge import FunctionJudge, Judge, JudgeEndpoint, Judges
from levelhead.tasks.judges.breaker import Breaker
from levelhead.tasks.judges.calibration import fingerprint, read_calibrations
from levelhead.tasks.judges.lineup import Lineup
from levelhead.tasks.judges.member import EndpointMember, FunctionMember, Member
from levelhead.tasks.judges.orders import BothOrders
from levelhead.tasks.judges.seat import Seat


def make_lineup(
    section: Judge | Judges, task: str, rubric: str, transport: httpx2.AsyncBaseTransport | None = None
) -> Lineup:
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
        return Lineup([Seat(BothOrders(alone) if pairs else alone, Breaker(1.0))], None)
    members = [
        _member(one, f"tasks[].judges.members[{i}]", transport, pairs=pairs) for i, one in enumerate(section.members)
    ]
    seats = [Seat(member, Breaker(section.retry_after_s)) for member in members]
    if section.calibration is not None:
        calibrations = read_calibrations(section.calibration)
        for seat, one in zip(seats, section.members, strict=True):
            entry = calibrations.of(task, one.title)
            if entry is None or entry.fingerprint != fingerprint(one, rubric, pairs=pairs):
                how = (
                    "is not in it"
                    if entry is None
                    else "has changed since, or its rubric or the way that it is asked has"
                )
                raise InputError(
                    f"{section.calibration}: the judge {one.title} of {task} {how} (tasks[].judges.calibration); "
                    "'levelhead judge calibrate RECIPE' writes it anew"
                )
            seat.scale, seat.weight, seat.refused = entry.scale, entry.weight, tuple(entry.refused)
    return Lineup(seats, section)


def _member(
    section: JudgeEndpoint | FunctionJudge, where: str, transport: httpx2.AsyncBaseTransport | None, *, pairs: bool
) -> Member:
    if isinstance(section, FunctionJudge):
        member: Member = FunctionMember(section, where)
    else:
        # Models of one name at two addresses are two judges, which may share a cache.
        salt = hashlib.sha256(f"{section.provider} {section.base_url.rstrip('/')}".encode()).hexdigest()[:8]
        member = EndpointMember(section, where, f"{salt}/", transport, pairs=pairs)
    return BothOrders(member) if pairs else member
