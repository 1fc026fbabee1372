"""One weight sync: the same order of calls for every transport, a probe after it, and a name for what goes wrong.

Pause, start, update, finish with the version's label, reset the prefix cache, resume.  Whatever fails in between, the
servers are told to go on before the error is raised: a trainer that has crashed must not leave them blocked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from levelhead.errors import EngineError, InputError
from levelhead.recipe.generator import Vllm
from levelhead.recipe.sampling import Sampling
from levelhead.rollout.draws import derive
from levelhead.rollout.generators.vllm.client import HangsError, RefusedError, ServerLostError
from levelhead.rollout.generators.vllm.probe import DRAWN, Account
from levelhead.rollout.generators.vllm.routes import ReplyError, read_reply, sampling_params, write_body
from levelhead.rollout.generators.vllm.servers import Server, Servers, each, no_such_route
from levelhead.rollout.generators.vllm.transports.base import Payload, Transport

RESUME_S = 10.0
"""Seconds that a server has to go on after a sync that failed."""


class Sync:
    """Brings new weights to the servers.

    Args:
        servers: All of the run.
        transport: How the weights get there.
        section: The recipe's ``generator``.
    """

    def __init__(self, servers: Servers, transport: Transport, section: Vllm) -> None:
        self._servers, self._transport, self._section = servers, transport, section

    async def push(self, targets: Sequence[Server], payload: Payload) -> list[Server]:
        """Bring a version of the weights to some servers; returns those that have it.

        A server that is lost on the way is left out.

        Raises:
            EngineError: A server refuses a call or does not answer it in time, or none is left.
        """
        servers = list(targets)
        await self._all(servers, self._wake)
        if not self._transport.in_place:
            await self._send(servers, payload)
        else:
            try:
                await self._all(servers, self._post(f"/pause?mode={self._section.in_flight}", self._pause_s))
                await self._all(servers, self._post("/start_weight_update"))
                await self._send(servers, payload)
                await self._all(servers, self._post("/finish_weight_update", body={"weight_version": payload.label}))
                await self._all(servers, self._post("/reset_prefix_cache"))
            except BaseException:
                await self._resume_at_any_rate(servers)
                raise
            await self._all(servers, self._post("/resume"))
        for server in servers:
            server.label = payload.label
            server.syncs += 1
        return servers

    async def sleep(self, targets: Sequence[Server]) -> None:
        """Have servers give up their memory until the next sync; their weights wait on the host."""

        async def rest(server: Server) -> None:
            await server.client.control("/sleep?level=1&mode=wait", self._section.sync_timeout_s)
            server.asleep = True

        await self._all(list(targets), rest)

    async def wake(self, targets: Sequence[Server]) -> None:
        """Have servers take up their memory again."""
        await self._all(list(targets), self._wake)

    async def account(
        self, server: Server, label: str, contexts: Sequence[tuple[int, ...]], *, model: str | None = None
    ) -> Account:
        """Have a server draw a continuation of each context, and say how likely it is.

        Raises:
            EngineError: It does not.
        """
        controls = Sampling(max_new_tokens=DRAWN)
        path, name = server.route, model or self._transport.model(label)

        async def draw(index: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
            params = sampling_params(controls, (), derive(0, "probe", index) % (1 << 31))
            body = write_body(path, name, contexts[index], params)
            reply = read_reply(path, await server.client.sample(path, body, self._section.sync_timeout_s), (), DRAWN)
            return reply.token_ids, reply.logprobs

        try:
            rows = await asyncio.gather(*(draw(index) for index in range(len(contexts))))
        except (HangsError, RefusedError, ReplyError) as error:
            cause = "hangs" if isinstance(error, HangsError) else "refused"
            raise EngineError(f"{server.url} does not answer the probe after a weight sync: {error}", cause) from error
        pairs = tuple((context, ids) for context, (ids, _) in zip(contexts, rows, strict=True))
        return Account(pairs, tuple(logps for _, logps in rows))

    @property
    def _pause_s(self) -> float:
        """With ``in_flight: wait`` a pause lasts as long as the longest completion under way."""
        waits = self._section.timeout_s if self._section.in_flight == "wait" else 0.0
        return max(self._section.sync_timeout_s, waits)

    async def _send(self, left: list[Server], payload: Payload) -> None:
        async def send(server: Server) -> None:
            await self._transport.send([server], payload, self._section.sync_timeout_s)

        if self._section.sync == "nccl":  # one collective for all of them
            try:
                await self._transport.send(left, payload, self._section.sync_timeout_s)
            except (HangsError, RefusedError, ServerLostError) as error:
                raise self._failed(left, error) from error
        else:
            await self._all(left, send, sends=True)

    async def _all(self, left: list[Server], act: Callable[[Server], Awaitable[None]], *, sends: bool = False) -> None:
        """Do one thing on all servers; those that are lost are taken off the list."""
        lost: list[tuple[Server, ServerLostError]] = []

        async def one(server: Server) -> None:
            try:
                await act(server)
            except ServerLostError as error:
                lost.append((server, error))
            except (HangsError, RefusedError) as error:
                raise self._failed([server], error, sends=sends) from error

        await each(left, one)
        for server, error in lost:
            left.remove(server)
            self._servers.lose(server, error)

    def _post(
        self, path: str, seconds: float | None = None, body: dict[str, str] | None = None
    ) -> Callable[[Server], Awaitable[None]]:
        async def post(server: Server) -> None:
            try:
                await server.client.control(path, seconds or self._section.sync_timeout_s, body)
            except RefusedError as error:
                if error.status in (404, 405):
                    raise no_such_route(server, path) from error
                raise

        return post

    async def _wake(self, server: Server) -> None:
        if server.asleep:
            await server.client.control("/wake_up", self._section.sync_timeout_s)
            server.asleep = False

    async def _resume_at_any_rate(self, servers: Sequence[Server]) -> None:
        async def resume(server: Server) -> None:
            with contextlib.suppress(HangsError, RefusedError, ServerLostError):
                await server.client.control("/resume", RESUME_S)

        await each(servers, resume)

    def _failed(self, servers: Sequence[Server], error: Exception, *, sends: bool = False) -> EngineError | InputError:
        """What to say of a sync that a server has not taken part in to its end."""
        where = ", ".join(server.url for server in servers)
        for server in servers:
            server.label = None
        if isinstance(error, HangsError):
            return EngineError(
                f"{where}: the weight sync hangs: {error}; look at the server's log, start it again and resume the "
                "run, or raise generator.sync_timeout_s",
                "hangs",
            )
        hint = ""
        if sends and self._section.shared is not None:
            hint = f" (it reads {self._section.shared}: does it see that folder under this path?)"
        half = (
            "the update is half applied, and the server's weights are of no use"
            if self._transport.in_place
            else ("the adapter is not loaded")
        )
        return EngineError(
            f"{where} breaks off a weight sync: {error}{hint}; {half}: look at its log, start it again and resume the "
            "run",
            "half-update" if self._transport.in_place else "refused",
        )
