"""The servers of a run: which are there, what they hold, and which takes the next request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from levelhead.errors import EngineError, InputError
from levelhead.message import Message
from levelhead.records import Event, Severity
from levelhead.rollout.generators.vllm.client import Client, HangsError, RefusedError, ServerLostError
from levelhead.rollout.generators.vllm.routes import COMPLETIONS, GENERATE
from levelhead.waiting import all_of

T = TypeVar("T")

LOST = Message(
    "{server} is lost ({why}); its requests are repeated on the {rest} that are left",
    "{server} 失去联系（{why}）；它的请求改由其余 {rest} 台重做",
)
ALL_BUT_ONE_LOST = Message(
    "{server} is lost ({why}); its requests are repeated on the 1 that is left",
    "{server} 失去联系（{why}）；它的请求改由其余 1 台重做",
)
LAST_LOST = Message(
    "{server} is lost ({why}); no other server is left: start it again and resume the run",
    "{server} 失去联系（{why}）；没有其他服务器可用：请重新启动它，再继续训练",
)
JOINED = Message("{server} is there and gets the weights", "{server} 已上线，正在接收权重")

LOOK_S = 10.0
"""Seconds that a server has to say that it is there."""


@dataclass(slots=True)
class Server:
    """One server of the run and its state.

    Attributes:
        client: Its connection.
        route: By which it samples.
        label: Version of the weights that it was given; ``None`` for none of this run.
        there: Whether it answers.
        asleep: Whether it has given up its memory.
        under_way: Requests at work there.
        syncs: Times that it was given weights.
    """

    client: Client
    route: str = GENERATE
    label: str | None = None
    there: bool = False
    asleep: bool = False
    under_way: int = 0
    syncs: int = 0

    @property
    def url(self) -> str:
        """Its address in the form ``http://host:port``."""
        return self.client.url


@dataclass(slots=True)
class Servers:
    """All servers of a run.

    Attributes:
        members: In the recipe's order.
        repeated: Requests that were repeated elsewhere since the last look.
    """

    members: list[Server]
    repeated: int = 0
    _events: list[tuple[str, Severity, str, dict[str, str]]] = field(default_factory=list)

    @property
    def there(self) -> list[Server]:
        """Those that answered when they were last looked at."""
        return [server for server in self.members if server.there]

    def pick(self, label: str, failed: Collection[str] = ()) -> Server | None:
        """Return the server with the fewest requests under way among those that hold a version of the weights.

        Args:
            label: Of the version.
            failed: URLs of servers that are taken only where there is no other.
        """
        ready = [server for server in self.there if server.label == label]
        return min(ready, key=lambda server: (server.url in failed, server.under_way)) if ready else None

    async def look(self) -> None:
        """Find out which servers are there, and by which route those that are new sample.

        Raises:
            EngineError: None is there.
        """
        missing = [server for server in self.members if not server.there]
        await asyncio.gather(*(self._look_at(server) for server in missing))
        if not self.there:
            urls = ", ".join(server.url for server in self.members)
            raise EngineError(f"no server answers at {urls}; start one (levelhead serve policy says how)", "lost")

    def lose(self, server: Server, why: object) -> None:
        """Leave a server out from now on.

        Raises:
            EngineError: It was the last one.
        """
        if server.there:
            server.there, server.label = False, None
            evidence, rest = {"server": server.url, "why": str(why)}, len(self.there)
            if not rest:
                raise EngineError(LAST_LOST(**evidence), "lost")
            text = (LOST if rest > 1 else ALL_BUT_ONE_LOST)(**evidence, rest=rest)
            self.tell("engine-server-lost", "warning", text, evidence)

    def tell(self, code: str, severity: Severity, text: str, evidence: dict[str, str]) -> None:
        """Keep an event until somebody asks for it."""
        self._events.append((code, severity, text, evidence))

    def tell_once(self, code: str, text: str, evidence: dict[str, str]) -> None:
        """Keep a warning, unless there is one of the same server until somebody asks."""
        if not any(c == code and e.get("server") == evidence["server"] for c, _, _, e in self._events):
            self.tell(code, "warning", text, evidence)

    def drain_events(self, step: int) -> list[Event]:
        """What has happened since the last call, dated ``step``."""
        events, self._events = self._events, []
        return [Event(step, code, severity, text, "warn", evidence) for code, severity, text, evidence in events]

    async def close(self) -> None:
        """Close the connections to every server; none of them is stopped."""
        await asyncio.gather(*(server.client.close() for server in self.members))

    async def _look_at(self, server: Server) -> None:
        try:
            await server.client.control("/health", LOOK_S, method="GET")
            server.route = await self._route(server)
        except (ServerLostError, HangsError, RefusedError):
            return
        server.there, server.label = True, None
        if any(member.label is not None for member in self.members):
            self.tell("engine-server-joined", "info", JOINED(server=server.url), {"server": server.url})

    @staticmethod
    async def _route(server: Server) -> str:
        """The route that samples: the one that says which weights drew which token, where the server has it."""
        try:
            await server.client.control(GENERATE, LOOK_S, {})
        except RefusedError as error:
            return COMPLETIONS if error.status in (404, 405) else GENERATE
        return GENERATE


async def each(servers: Iterable[Server], act: Callable[[Server], Awaitable[T]]) -> list[T]:
    """Do one thing with several servers at once, and wait for all of them.

    Raises:
        BaseException: The first that one ended with, once all have ended.
    """
    return await all_of(act(server) for server in servers)


def no_such_route(server: Server, path: str) -> InputError:
    """What to say of a server that lacks a route that weight syncs need."""
    return InputError(
        f"generator.urls: {server.url} has no {path}; start it with the command that `levelhead serve policy RECIPE` "
        "prints (VLLM_SERVER_DEV_MODE=1, --weight-transfer-config, --enable-lora)"
    )
