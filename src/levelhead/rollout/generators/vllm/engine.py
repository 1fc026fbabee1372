"""The servers of a run as one: they hold one version of the policy, and any of them draws from it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from levelhead.errors import EngineError
from levelhead.message import Message
from levelhead.metrics import engine as numbers
from levelhead.policy.policy import Policy
from levelhead.recipe.generator import Vllm
from levelhead.rollout.generators.vllm import peers, probe
from levelhead.rollout.generators.vllm.causes import Patient, diagnose, head_copy
from levelhead.rollout.generators.vllm.client import HangsError, RefusedError, ServerLostError
from levelhead.rollout.generators.vllm.servers import Server, Servers, each
from levelhead.rollout.generators.vllm.sync import Sync
from levelhead.rollout.generators.vllm.transports.base import Payload, Transport
from levelhead.rollout.generators.vllm.weights import fingerprint

T = TypeVar("T")
RESTARTED = Message(
    "{server} has been started anew (or given weights by somebody else); it gets the weights again",
    "{server} 已重新启动（或被别人写入了权重）；将再次收到权重",
)
Compute = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Computes in a thread that may use the policy."""


@dataclass(slots=True)
class _Use:
    """What syncs have come to since the last look."""

    syncs: int = 0
    seconds: float = 0.0
    gaps: list[probe.Gap] = field(default_factory=list)


class Engine:
    """Keeps the servers at the policy's weights.

    Args:
        section: The recipe's ``generator``.
        servers: Of the run.
        transport: How weights get there.
        policy: Whose weights; as it is now, the servers may have loaded it themselves.
    """

    def __init__(self, section: Vllm, servers: Servers, transport: Transport, policy: Policy) -> None:
        self.section, self.servers, self.transport = section, servers, transport
        self.slots = asyncio.Semaphore(section.concurrency)
        self._sync = Sync(servers, transport, section)
        self._lock = asyncio.Lock()
        self._run = uuid.uuid4().hex[:8]
        self._payload: Payload | None = None
        self._fingerprint: tuple[float, ...] = ()
        self._labels: dict[str, tuple[int, int]] = {}
        self._contexts = probe.contexts(policy, "always")
        self._recent: deque[tuple[int, ...]] = deque(maxlen=probe.RECENT)
        self._bound = section.max_mismatch
        self._head: Tensor | None = head_copy(policy) if transport.in_place else None
        self._use = _Use()

    @property
    def label(self) -> str | None:
        """By which servers call the weights in use; ``None`` before the first sync."""
        return None if self._payload is None else self._payload.label

    def age(self, label: str) -> int | None:
        """Number of a version among those of this run, from 0; ``None`` for one that is not this run's."""
        return self._labels[label][0] if label in self._labels else None

    def version(self, label: str) -> int:
        """Optimizer updates that a version of the weights has seen."""
        return self._labels[label][1]

    def note(self, context: tuple[int, ...]) -> None:
        """Remember a context that is asked for: the servers have cached it."""
        if len(context) <= 2 * probe.LENGTH and context not in self._recent:
            self._recent.append(context)

    async def ensure(self, policy: Policy, compute: Compute, before: Callable[[], None] | None = None) -> None:
        """Bring the policy's weights to every server that does not hold them; all processes of a run call it together.

        Args:
            policy: Whose weights.
            compute: Where it is computed with.
            before: Done first, while nothing else is done with the policy.

        Raises:
            EngineError: A server cannot take them, or does not compute with them.
        """
        async with self._lock:
            if before is not None:
                await compute(before)
            stale = await self._by_first(compute, self._stale)
            print_now = await compute(lambda: fingerprint(policy))
            changed = await compute(lambda: peers.any_of(self._payload is None or print_now != self._fingerprint))
            if changed:
                await self._renew(policy, compute)
                self._fingerprint = print_now
            elif stale:
                await self._bring(policy, compute, [s for s in self.servers.there if s.label is None])
            elif self.section.sleep:
                await self._by_first(compute, lambda: self._sync.wake(self.servers.there))
            await self._agree(compute)

    async def renew(self, server: Server, policy: Policy, compute: Compute) -> None:
        """Bring the weights to a server that has been started anew in the middle of a batch.

        Raises:
            EngineError: Several processes share it, and would have to take part.
        """
        if not peers.alone():
            raise EngineError(
                f"{server.url} has been started anew in the middle of a batch, which several processes share; resume "
                "the run",
                "lost",
            )
        async with self._lock:
            if server.label is None and server.there:
                await self._bring(policy, compute, [server])

    async def sleep(self) -> None:
        """Have the servers give up their memory, where the recipe says so."""
        if self.section.sleep and peers.is_first():
            async with self._lock:
                await self._sync.sleep([server for server in self.servers.there if not server.asleep])

    def drain_use(self) -> Mapping[str, float]:
        """Metrics of the syncs since the last call."""
        use, self._use = self._use, _Use()
        repeated, self.servers.repeated = self.servers.repeated, 0
        values = {
            numbers.SERVERS: float(len(self.servers.there)),
            numbers.SYNCS: float(use.syncs),
            numbers.REPEATED: float(repeated),
            numbers.TIME_SYNC: use.seconds,
        }
        if use.gaps:
            values[numbers.MISMATCH_MEAN] = max(gap.mean for gap in use.gaps)
            values[numbers.MISMATCH_MAX] = max(gap.most for gap in use.gaps)
        return values

    async def close(self) -> None:
        """Let the servers go on as they are, and close all connections."""
        if self._payload is not None:
            await self.transport.drop(self.servers.there if peers.is_first() else [], self._payload)
        await self.servers.close()

    async def _stale(self) -> bool:
        """Whether a server does not hold the newest version; one that has been started anew is told of."""
        await self.servers.look()
        label = self.label

        async def check(server: Server) -> None:
            try:
                if label is None or server.label != label or await self.transport.holds(server, label):
                    return
            except (ServerLostError, HangsError, RefusedError) as error:
                self.servers.lose(server, error)
                return
            self.restarted(server)

        await each(self.servers.there, check)
        return any(server.label != label for server in self.servers.there)

    def restarted(self, server: Server) -> None:
        """Note that a server no longer holds what it was given."""
        if server.label is not None:
            server.label, server.asleep = None, False
            self.servers.tell(
                "engine-restarted",
                "warning",
                RESTARTED(server=server.url),
                {"server": server.url},
            )

    async def _renew(self, policy: Policy, compute: Compute) -> None:
        """Bring new weights to all servers."""
        number = len(self._labels)
        label = await compute(lambda: peers.share(f"{self._run}-{number}"))
        began = time.perf_counter()
        payload: Payload = await compute(lambda: self.transport.prepare(policy, label))
        before, self._payload = self._payload, payload
        self._labels[label] = (number, policy.version)
        self._use.seconds += time.perf_counter() - began
        await self._bring(policy, compute, self.servers.there)
        if before is not None:
            await self.transport.drop(self.servers.there if peers.is_first() else [], before)
        if self._head is not None:
            self._head = await compute(lambda: head_copy(policy))

    async def _bring(self, policy: Policy, compute: Compute, targets: Sequence[Server]) -> None:
        """Bring the weights in use to some servers, and believe it after a probe of each."""
        payload = self._payload
        assert payload is not None  # noqa: S101 - there is a version
        began = time.perf_counter()

        async def push() -> list[str]:
            return [server.url for server in await self._sync.push(targets, payload)]

        urls = await self._by_first(compute, push)
        for server in [server for server in self.servers.members if server.url in urls]:
            try:
                self._use.gaps.append(await self._probe(server, payload.label, policy, compute))
            except ServerLostError as error:
                self.servers.lose(server, error)
        self._use.syncs += 1
        self._use.seconds += time.perf_counter() - began

    async def _probe(self, server: Server, label: str, policy: Policy, compute: Compute) -> probe.Gap:
        """Compare what a server says with what the trainer says; once more before it counts.

        Raises:
            EngineError: They differ by more than rounding explains.
        """
        asked = [*self._contexts, *self._recent]

        async def draw(contexts: Sequence[tuple[int, ...]], below: bool) -> probe.Account:
            model = self.section.model if below else None
            return await self._by_first(compute, lambda: self._sync.account(server, label, contexts, model=model))

        async def compare(*, measure: bool) -> tuple[probe.Account, probe.Gap, float]:
            account = await draw(asked, False)
            ours = await compute(lambda: probe.logprobs(policy, account.pairs))
            if self._bound is None or measure:
                self._bound = float(await compute(lambda: probe.bound(policy, account.pairs, ours)))
            return account, probe.Gap.between(ours, account.logprobs), self._bound

        account, gap, most = await compare(measure=False)
        if gap.mean > most:  # once more: rounding grows as a policy sharpens, and is measured anew
            account, gap, most = await compare(measure=self.section.max_mismatch is None)
        if gap.mean <= most:
            return gap

        async def push() -> None:
            payload = self._payload
            assert payload is not None  # noqa: S101 - it has just been sent
            await self._by_first(compute, lambda: self._sync.push([server], payload))

        server.label = None
        raise await diagnose(
            Patient(
                server.url,
                label,
                policy,
                account,
                gap,
                most,
                self._head,
                draw,
                compute,
                push,
                beside_base=not self.transport.in_place,
            )
        )

    async def _by_first(self, compute: Compute, work: Callable[[], Awaitable[T]]) -> T:
        """Let the first process of the run do something, and know what came of it."""
        if peers.alone():
            return await work()
        value: Any = None
        error: Exception | None = None
        if peers.is_first():
            try:
                value = await work()
            except Exception as failure:
                error = failure
        value, error = await compute(lambda: peers.share((value, error)))
        if error is not None:
            raise error
        shared: T = value
        return shared

    async def _agree(self, compute: Compute) -> None:
        """Let every process know what the first one knows of the servers."""
        if peers.alone():
            return
        rows = [(server.there, server.route, server.label) for server in self.servers.members]
        rows = await compute(lambda: peers.share(rows))
        for server, (there, route, label) in zip(self.servers.members, rows, strict=True):
            server.there, server.route, server.label = there, route, label
