"""The generator protocol: a prompt's token ids in, one completion's token ids and log-probabilities out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from levelhead.recipe.sampling import Sampling
from levelhead.records import Event, Prompt, Turn


@dataclass(frozen=True, slots=True)
class Request:
    """One completion that is to be sampled.

    Attributes:
        prompt: Rendered: its token ids are the context, and its id is a part of the seed.
        index: Of the completion in its group.
        controls: Temperature, lengths, penalties and the like.
        seed: Of the call; completions of other prompts or indices have random numbers of their own.
        place: Rank among the requests that wait at the same time, so that what is sampled together has an order that
            does not depend on timing.
    """

    prompt: Prompt
    index: int
    controls: Sampling
    seed: int
    place: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion with the weights that sampled it.

    Attributes:
        turn: Its context, token ids, log-probabilities and finish reason.
        versions: The oldest and the newest weights that sampled its tokens, as optimizer updates that they have seen.
    """

    turn: Turn
    versions: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a generator can do.

    Attributes:
        policy_logprobs: Whether ``Turn.logprobs`` are the policy's own under all controls; else they are those of the
            draws, and the trainer recomputes them where a control changes the distribution.
        reproducible: Whether a request's tokens are the same to the bit whatever else is sampled.
    """

    policy_logprobs: bool = True
    reproducible: bool = True


@runtime_checkable
class Generator(Protocol):
    """Draws completions of one policy, from coroutines of one event loop."""

    @property
    def capabilities(self) -> Capabilities:
        """Whose log-probabilities it records, and whether its draws can be repeated."""
        ...

    @property
    def version(self) -> int:
        """Optimizer updates that the weights in use have seen."""
        ...

    async def generate(self, request: Request) -> Completion:
        """Sample one completion of a prompt.

        Its tokens depend on the weights, the seed, the prompt's id and tokens and the index, and on nothing that is
        sampled at the same time.
        """
        ...

    def expect(self, count: int) -> None:
        """Announce that this many coroutines are going to ask, each for one completion after another.

        A generator that draws several completions at once waits until each of them has asked.  One of them that will
        not ask again says so with :meth:`leave`; whoever announced them ends it with ``expect(0)``.
        """
        ...

    def leave(self) -> None:
        """Announce that one of the coroutines that were expected will not ask again."""
        ...

    async def sync_weights(self) -> None:
        """Take over the weights that the policy has now; cheap where they are in use already."""
        ...

    async def rest(self) -> None:
        """Take note that nothing will be asked for before the next :meth:`sync_weights`."""
        ...

    async def close(self) -> None:
        """Give up what is being sampled, and release threads and connections."""
        ...


@runtime_checkable
class Remote(Protocol):
    """A generator that draws elsewhere, and has something to tell of it.

    Attributes:
        before_sync: Brings the policy up to date at the beginning of a sync, where it is itself a copy.
    """

    before_sync: Callable[[], None] | None

    async def rest(self) -> None:
        """Take note that nothing will be asked for before the next sync."""
        ...

    def drain_events(self, step: int) -> list[Event]:
        """Return what happened since the last call, dated ``step``."""
        ...

    def drain_use(self) -> Mapping[str, float]:
        """Return metrics of the time since the last call."""
        ...


def compute_thread(device: torch.device) -> ThreadPoolExecutor:
    """Return one thread that computes on a device as the caller's does, with as many threads of torch's own."""
    threads = torch.get_num_threads()

    def set_up() -> None:
        torch.set_num_threads(threads)  # a new thread would take as many as there are cores
        if device.type == "cuda":
            torch.cuda.set_device(device)

    return ThreadPoolExecutor(1, "levelhead-generator", set_up)
