"""From a recipe's sections to the judges of a task."""

from __future__ import annotations

import hashlib

import httpx2

from levelhead.recipe.judge import FunctionJudge, Judge, JudgeEndpoint, Judges
from levelhead.tasks.judges.breaker import Breaker
from levelhead.tasks.judges.lineup import Lineup, Seat
from levelhead.tasks.judges.member import EndpointMember, FunctionMember, Member


def make_lineup(section: Judge | Judges, transport: httpx2.AsyncBaseTransport | None = None) -> Lineup:
    """Return the judges that a recipe names.

    Args:
        section: ``judge``, a single one, or ``judges``.
        transport: Another way to the endpoints than the network, for tests.

    Raises:
        InputError: A cache of replies cannot be opened, or a function is not there.
    """
    if isinstance(section, Judge):
        seat = Seat(EndpointMember(section, "tasks[].judge", "", transport), Breaker(1.0))
        return Lineup([seat], None)
    members = [_member(one, f"tasks[].judges.members[{i}]", transport) for i, one in enumerate(section.members)]
    return Lineup([Seat(member, Breaker(section.retry_after_s)) for member in members], section)


def _member(section: JudgeEndpoint | FunctionJudge, where: str, transport: httpx2.AsyncBaseTransport | None) -> Member:
    if isinstance(section, FunctionJudge):
        return FunctionMember(section, where)
    # Models of one name at two addresses are two judges, which may share a cache.
    salt = hashlib.sha256(f"{section.provider} {section.base_url.rstrip('/')}".encode()).hexdigest()[:8]
    return EndpointMember(section, where, f"{salt}/", transport)
