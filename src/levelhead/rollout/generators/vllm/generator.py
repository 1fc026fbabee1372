"""The generator that samples on vLLM servers: token ids out, token ids and log-probabilities back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

import torch

from levelhead.errors import EngineError
from levelhead.message import Message
from levelhead.policy.policy import Policy
from levelhead.recipe.generator import Vllm
from levelhead.records import Event, Turn
from levelhead.rollout.draws import derive
from levelhead.rollout.generators.base import Capabilities, Completion, Request, compute_thread
from levelhead.rollout.generators.vllm.client import Client, HangsError, RefusedError, ServerLostError, ServerStaleError
from levelhead.rollout.generators.vllm.engine import Engine
from levelhead.rollout.generators.vllm.routes import Reply, ReplyError, read_reply, sampling_params, write_body
from levelhead.rollout.generators.vllm.servers import LOOK_S, Server, Servers
from levelhead.rollout.generators.vllm.transports.adapter import AdapterTransport
from levelhead.rollout.generators.vllm.transports.base import Transport
from levelhead.rollout.generators.vllm.transports.files import FilesTransport
from levelhead.rollout.generators.vllm.transports.nccl import NcclTransport

BAD_REPLY = Message(
    "{server} sends a reply that is not what was asked for ({why}); the request is repeated",
    "{server} 的回复不是所请求的内容（{why}）；请求会重做",
)
ATTEMPTS = 4
"""Times that a request is sent before its failure counts."""
_GONE, _BROKEN = frozenset({404}), 500


class VllmGenerator:
    """Draws from servers that hold a copy of the policy, any number of requests at once.

    A request's tokens depend on the weights, the seed, its prompt and its index, up to rounding: what is computed in
    another batch rounds otherwise.

    Args:
        policy: Whose completions.
        engine: The servers; several generators of a run may share them.
        executor: Where the policy is computed; a thread of the generator's own unless given.
        shares: Whether another generator of the run closes the connections.
    """

    def __init__(
        self, policy: Policy, engine: Engine, executor: Executor | None = None, *, shares: bool = False
    ) -> None:
        self._policy, self.engine, self._shares = policy, engine, shares
        self._executor: Executor = compute_thread(policy.device) if executor is None else executor
        self._owns_thread = executor is None
        self._version = policy.version
        self.before_sync: Callable[[], None] | None = None
        """Brings the policy up to date at the beginning of a sync, where it is itself a copy."""

    @property
    def version(self) -> int:
        """Optimizer updates that the weights in use have seen."""
        return self._version

    @property
    def capabilities(self) -> Capabilities:
        """Log-probabilities are those of the draws; nothing is equal to the bit."""
        return Capabilities(policy_logprobs=False, reproducible=False)

    def expect(self, count: int) -> None:
        """Nobody waits for others here."""

    def leave(self) -> None:
        """Nobody waits for others here."""

    async def sync_weights(self) -> None:
        """Bring the policy's weights to every server that does not hold them; see :class:`Generator`.

        Raises:
            EngineError: A server cannot take them, or does not compute with them.
        """
        await self.engine.ensure(self._policy, self._compute, self.before_sync)
        self._version = self._policy.version

    async def generate(self, request: Request) -> Completion:
        """Draw one completion; see :class:`Generator`.

        Raises:
            EngineError: No server draws it.
        """
        engine = self.engine
        engine.note(request.prompt.token_ids)
        async with engine.slots:
            failed: set[str] = set()
            for attempt in range(ATTEMPTS):
                label = engine.label
                server = None if label is None else engine.servers.pick(label, failed)
                if label is None or server is None:
                    await self._bring_back()
                    continue
                try:
                    syncs = server.syncs
                    return await self._ask(server, label, request)
                except ServerStaleError:
                    if server.syncs == syncs:  # nobody else has noticed it and brought the weights meanwhile
                        engine.restarted(server)
                    await engine.renew(server, self._policy, self._compute)
                except (ServerLostError, RefusedError, HangsError, ReplyError) as error:
                    failed.add(server.url)
                    await self._give_up(server, error, last=attempt + 1 == ATTEMPTS)
                engine.servers.repeated += 1
        raise EngineError(f"no server has drawn a completion in {ATTEMPTS} attempts; resume the run", "lost")

    async def rest(self) -> None:
        """Have the servers give up their memory, where the recipe says so."""
        await self.engine.sleep()

    def drain_events(self, step: int) -> list[Event]:
        """What has happened to the servers since the last call, dated ``step``."""
        return self.engine.servers.drain_events(step)

    def drain_use(self) -> Mapping[str, float]:
        """Metrics of the servers and syncs since the last call."""
        return self.engine.drain_use()

    async def close(self) -> None:
        """Close all connections; what is under way is given up."""
        if not self._shares:
            await self.engine.close()
        if self._owns_thread:
            self._executor.shutdown()

    async def _ask(self, server: Server, label: str, request: Request) -> Completion:
        engine, controls = self.engine, request.controls
        stops = self._policy.codec.stop_ids
        seed = derive(request.seed, "vllm", request.prompt.id, request.index) % (1 << 31)
        body = write_body(
            server.route,
            engine.transport.model(label),
            request.prompt.token_ids,
            sampling_params(controls, stops, seed),
        )
        server.under_way += 1
        try:
            answer = await server.client.sample(server.route, body, engine.section.timeout_s, controls.max_new_tokens)
        except RefusedError as error:
            if error.status in _GONE and not engine.transport.in_place:
                raise ServerStaleError from error
            raise
        finally:
            server.under_way -= 1
        config = getattr(self._policy.model, "config", None)
        vocabulary = max(self._policy.codec.vocab_size, getattr(config, "vocab_size", 0) or 0)
        reply = read_reply(server.route, answer, stops, controls.max_new_tokens, vocabulary)
        if reply.aborted:
            raise ReplyError("the server broke the request off")
        if not reply.stopped and len(reply.token_ids) < controls.max_new_tokens:
            raise EngineError(
                f"{server.url} cuts a completion after {len(reply.token_ids)} of {controls.max_new_tokens} tokens; "
                "start it with a larger --max-model-len, or lower max_new_tokens"
            )
        return self._completion(request, reply, label)

    def _completion(self, request: Request, reply: Reply, label: str) -> Completion:
        """Put a completion together, with the versions of the weights that drew it.

        Raises:
            ServerStaleError: Weights drew it that are not this run's, or older than those in use.
        """
        versions: list[tuple[int, int]] = []
        if self.engine.transport.in_place and reply.stretches:
            least = self.engine.age(label)
            for stretch in reply.stretches:
                age = self.engine.age(stretch.label)
                if age is None or least is None or age < least:
                    raise ServerStaleError
                versions.append((self.engine.version(stretch.label), stretch.end))
        newest = self.engine.version(label)
        seen = [version for version, _ in versions] or [newest]
        changed = tuple(versions) if len(versions) > 1 else ()
        finish: Any = "stop" if reply.stopped else "length"
        turn = Turn(request.prompt.token_ids, reply.token_ids, reply.logprobs, reply.logprobs, finish, changed)
        return Completion(turn, (min(seen), max(seen)))

    async def _bring_back(self) -> None:
        """Bring the weights to a server that is there without them, where none has them."""
        bare = [server for server in self.engine.servers.there if server.label is None]
        if not bare:
            raise EngineError("no server is left that holds the weights: start it again and resume the run", "lost")
        await self.engine.renew(bare[0], self._policy, self._compute)

    async def _give_up(self, server: Server, error: Exception, *, last: bool) -> None:
        """Decide what a failed request says of its server: lost, or still there and to be asked again.

        Raises:
            EngineError: The request is at fault, or has failed too often, or no server is left.
        """
        if isinstance(error, RefusedError) and error.status < _BROKEN:
            raise EngineError(f"{server.url} refuses a request: {error}") from error
        try:
            await server.client.control("/health", LOOK_S, method="GET")
        except (ServerLostError, HangsError, RefusedError):
            self.engine.servers.lose(server, error)
            return
        if isinstance(error, HangsError):
            self.engine.servers.lose(server, f"{error}; generator.timeout_s may be too short")
        elif isinstance(error, ReplyError) and not last:
            self.engine.servers.tell_once(
                "engine-bad-reply",
                BAD_REPLY(server=server.url, why=error),
                {"server": server.url, "why": str(error)},
            )
        elif last:
            raise EngineError(f"{server.url} has failed {ATTEMPTS} times on one request: {error}", "lost") from error

    async def _compute(self, work: Callable[[], Any]) -> Any:
        """Compute with the policy in a thread that may."""
        return await asyncio.wrap_future(self._executor.submit(torch.no_grad()(work)))


_TRANSPORTS: dict[str, type[AdapterTransport] | type[FilesTransport] | type[NcclTransport]] = {
    "adapter": AdapterTransport,
    "files": FilesTransport,
    "nccl": NcclTransport,
}


def make_engine(section: Vllm, policy: Policy) -> Engine:
    """Return the servers of a recipe, none of which has been asked for anything.

    Raises:
        InputError: The key of the servers, the shared folder or vLLM's sender cannot be had.
    """
    transport: Transport = _TRANSPORTS[section.sync](section)
    servers = Servers([Server(Client(url, section)) for url in section.urls])
    return Engine(section, servers, transport, policy)
