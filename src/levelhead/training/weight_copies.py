"""Copies of the trained weights that draw groups while the policy trains on: one for each step whose groups pend."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from levelhead.message import Message
from levelhead.policy.policy import Policy
from levelhead.policy.sharding import piece
from levelhead.records import Event
from levelhead.rollout.generators.base import Completion, Generator, Remote, Request, compute_thread
from levelhead.rollout.generators.local import LocalGenerator
from levelhead.rollout.generators.make import make_generator
from levelhead.training.loop import EventLoop

STRIDE = 61
"""One entry in so many of each weight is compared after a sync."""


STALE = Message(
    "after the weight sync the copy that samples the next batch has other weights than the policy in {names}: the "
    "batch is sampled by older weights than off_policy/mean says",
    "权重同步之后，用于采样的副本在 {names} 上与策略不同：这批采样所用的权重比 off_policy/mean 所示的更旧",
)
MORE = Message("{names} and {count} more", "{names} 等（另有 {count} 个）")


@dataclass(slots=True, eq=False)
class WeightCopy:
    """A policy that keeps the weights of one moment.

    Attributes:
        policy: Holds them.
        version: Updates that they have seen.
        pending: Groups that they draw, or may have to draw again.
        generators: What samples from them.
    """

    policy: Policy
    version: int = 0
    pending: int = 0
    generators: list[Generator] = field(default_factory=list)


class WeightCopies:
    """Takes copies of the trained weights, and makes what draws from them.

    The policy itself draws where ``beside`` is a local generator: then every copy stays as it is for as long as groups
    need it.  Servers hold one version: there is one copy, and it is what they hold; where processes divide the
    weights, it is the policy itself.

    Args:
        policy: What is trained.
        beside: The generator of the run.
        loop: Where coroutines are awaited.
        ahead: Whether anything is sampled while the policy trains on; else the policy itself samples, and is no copy.
    """

    def __init__(self, policy: Policy, beside: Generator, loop: EventLoop, *, ahead: bool) -> None:
        self._policy, self._loop, self._beside = policy, loop, beside
        self._stale: list[Event] = []
        self._copies: list[WeightCopy] = []
        self._engine: Generator | None = None
        self._executor: ThreadPoolExecutor | None = None
        if not ahead:
            self._copies.append(WeightCopy(policy.samples_from))
            return
        self._executor = compute_thread(policy.device)
        if isinstance(beside, Remote):
            copy = self._make()
            self._engine = make_generator(copy.policy, beside=beside)
            assert isinstance(self._engine, Remote)  # noqa: S101 - as the one beside
            self._engine.before_sync = lambda: self._follow(copy)

    @property
    def reproducible(self) -> bool:
        """Whether the same request has the same tokens to the bit, whatever else is drawn."""
        return self._engine is None

    def newest(self) -> WeightCopy:
        """Return a copy of the weights as they are now; all processes of a run call it together."""
        if self._executor is None:
            self._copies[0].version = self._policy.version
            return self._copies[0]
        if self._engine is not None:
            self._loop.run(self._engine.sync_weights())
            return self._copies[0]
        copy = self._free()
        self._follow(copy)
        return copy

    @torch.no_grad()
    def restored(self, weights: Iterable[Tensor], version: int) -> WeightCopy:
        """Return a copy that holds the weights that :meth:`weights` gave."""
        copy = self._free() if self._engine is None else self._copies[0]
        for mine, saved in zip(self.weights(copy), weights, strict=True):
            mine.copy_(saved)
        copy.version = copy.policy.version = version
        copy.generators.clear()
        return copy

    def weights(self, copy: WeightCopy) -> list[Tensor]:
        """The weights of a copy that are its own, and not shared with the policy."""
        return copy.policy.copied(self._policy.samples_from)

    def pieces(self, copy: WeightCopy) -> list[Tensor] | None:
        """What this process would hold of the trained weights, in host memory, were they those of a copy.

        Servers' copies do not last: ``None``.
        """
        if self._engine is not None:
            return None
        pairs = zip(self.weights(copy), self._policy.parameters, strict=True)
        return [piece(whole, like).to("cpu", copy=True) for whole, like in pairs]

    def generator(self, copy: WeightCopy) -> Generator:
        """Return a generator of a copy's completions for groups that are drawn together."""
        if self._engine is not None:
            return self._engine
        if self._executor is None:
            return self._beside
        copy.generators.append(LocalGenerator(copy.policy, executor=self._executor))
        return copy.generators[-1]

    def stale_events(self, step: int) -> list[Event]:
        """Report copies that had other weights than the policy after a sync since the last call."""
        stale, self._stale = self._stale, []
        return [replace(event, step=step) for event in stale]

    def close(self) -> None:
        """Give up what is being drawn, and release threads and connections."""
        for generator in [generator for copy in self._copies for generator in copy.generators]:
            self._loop.run(generator.close())
        if self._engine is not None:
            self._loop.run(self._engine.close())
        if self._executor is not None:
            self._executor.shutdown()

    def _free(self) -> WeightCopy:
        return next((copy for copy in self._copies if not copy.pending), None) or self._make()

    def _make(self) -> WeightCopy:
        source = self._policy.samples_from
        if source.sharded:  # divided, and used in syncs alone, which all processes make between two steps
            copy = WeightCopy(source)
            self._copies.append(copy)
            return copy
        pairs = zip(source.model.parameters(), self._policy.model.parameters(), strict=True)
        copy = WeightCopy(source.inference_copy([mine for mine, trained in pairs if trained.requires_grad]))
        self._copies.append(copy)
        return copy

    def _follow(self, copy: WeightCopy) -> None:
        source = self._policy.samples_from
        copy.policy.follow(source)
        copy.version = copy.policy.version = self._policy.version
        copy.generators.clear()
        self._stale += stale_weights(copy.policy, source)


@torch.no_grad()
def stale_weights(copy: Policy, policy: Policy) -> list[Event]:
    """Report a copy of the policy that samples and has other weights after a sync, one entry in 61 compared.

    Args:
        copy: Has just taken over the weights.
        policy: Of which they are.
    """
    stale = [
        name
        for (name, mine), theirs in zip(copy.model.named_parameters(), policy.model.parameters(), strict=True)
        if mine is not theirs and not torch.equal(mine.reshape(-1)[::STRIDE], theirs.reshape(-1)[::STRIDE])
    ]
    if not stale:
        return []
    names = ", ".join(stale[:3])
    text = STALE(names=MORE(names=names, count=len(stale) - 3) if len(stale) > 3 else names)
    evidence = {"weights": stale[:8], "version": policy.version}
    return [Event(0, "weight-sync", "critical", text, "warn", evidence)]


class SharedGenerator:
    """A place in a generator that several groups sample from at once: whoever made it says how many will ask.

    Args:
        generator: Samples.
        first: Place of the group's first request among all.
    """

    def __init__(self, generator: Generator, first: int) -> None:
        self._generator, self._first, self._asked = generator, first, 0
        self.capabilities, self.version = generator.capabilities, generator.version

    async def generate(self, request: Request) -> Completion:
        """Sample with the generator, with the group's place before the request's; see :class:`Generator`."""
        self._asked += 1
        return await self._generator.generate(replace(request, place=self._first + request.place))

    def abandon(self, announced: int) -> None:
        """Of the requests announced for the group those not made by now will not be: nobody waits for them."""
        for _ in range(announced - self._asked):
            self._generator.leave()

    def expect(self, count: int) -> None:
        """Do nothing: whoever made the generator has said how many requests it will get."""

    def leave(self) -> None:
        """Nobody waits for the rest of a group here."""

    async def sync_weights(self) -> None:
        """The weights are those of the copy."""

    async def rest(self) -> None:
        """Do nothing: other groups go on sampling from it."""

    async def close(self) -> None:
        """Whoever made the generator closes it."""
