"""Hands out the batch of each step: sampled when its step begins, or one step ahead (``grpo.async: 1``).

Ahead, step s trains on the batch of the weights that step s - 1 started from, the first step on one of its own weights.
When a batch is handed out, a copy of the trained weights takes over their newest values and the next batch is begun
beside the training.  Which weights sample which prompts by which seed depends on the step alone, so that timing changes
no number.  Batches are sampled one after the other, and nothing else uses the tasks meanwhile: an evaluation waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from levelhead import metrics as metric
from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import Sampling
from levelhead.recipe.training import Grpo
from levelhead.records import Event, Prompt
from levelhead.rollout.generators.base import Capabilities, Generator, Remote
from levelhead.rollout.generators.make import make_generator
from levelhead.training.collect import Collected, Collector
from levelhead.training.ranks import Ranks
from levelhead.training.rollout_batcher import RolloutBatcher
from levelhead.training.stream import Stream
from levelhead.training.weight_copies import stale_weights

PATIENCE_S = 5.0
"""Seconds that what was called off has to come to an end."""


@dataclass(slots=True)
class _Batch:
    """A batch on its way.

    Attributes:
        step: That will train on it.
        controls: With which it is sampled.
        redraws: Bound of the rounds of groups without contrast.
        version: Updates that the weights which sample it have seen.
        stream: Position in the prompts before it.
        prompts: That it begins with, where it is sampled ahead.
        drawing: The batch, once it is there; ``None`` before it has begun.
        task: What samples it; ``None`` before it has begun.
    """

    step: int
    controls: Sampling
    redraws: int
    version: int
    stream: dict[str, Any]
    prompts: list[Prompt] = field(default_factory=list)
    drawing: Future[Collected] | None = None
    task: asyncio.Task[Any] | None = None


@dataclass(frozen=True, slots=True)
class SamplingSetup:
    """What the rollouts of the reinforcement stage are sampled from, by and for.

    Attributes:
        stream: Chooses prompts.
        collector: Samples and scores rollouts.
        config: The ``grpo`` section; it says how far ahead to sample.
        seed: Seed of all sampling.
        policy: What is trained.
        controls: Returns the sampling controls of a step, as the guard's overrides stand.
        ranks: The processes that share the work.
        keeps: Whether to hand out, with rollouts sampled ahead, the weights that sampled the oldest.
    """

    stream: Stream
    collector: Collector
    config: Grpo
    seed: int
    policy: Policy
    controls: Callable[[int], Sampling]
    ranks: Ranks
    keeps: bool = False


class Batches:
    """The batches of the reinforcement stage, in the order of its steps.

    Args:
        setup: What rollouts are sampled from, by and for.
    """

    def __init__(self, setup: SamplingSetup) -> None:
        self._stream, self._loop, self._config = setup.stream, setup.collector.loop, setup.config
        self._policy, self._controls = setup.policy, setup.controls
        self._keeps = setup.keeps
        self._inference_copy: Policy | None = None
        self._generator: Generator | None = None
        collector = setup.collector
        if setup.config.ahead:
            self._inference_copy = setup.policy.inference_copy()
            self._generator = make_generator(self._inference_copy, beside=collector.generator)
            collector = collector.drawing_with(self._generator)
        self._sampler = collector.generator
        self._rollout_batcher = RolloutBatcher(setup.stream, collector, setup.config, setup.seed)
        self._next: _Batch | None = None
        self._events: list[Event] = []

    def draw(self, step: int, controls: Sampling, redraws: int = 0) -> Collected:
        """Hand out the batch of a step, and begin the next one where the recipe samples ahead.

        The controls and the bound on redraws are those of batches that are begun now: of the next one, and of this one
        only where it has not been begun before.

        Raises:
            Exception: What kept the batch from being sampled; it can be asked for again.
        """
        if self._next is None:
            self._begin(step, controls, redraws)
        batch = self._wait()
        if self._inference_copy is None and isinstance(self._sampler, Remote):
            self._loop.run(self._sampler.rest())
        if self._inference_copy is not None and step < self._config.steps:
            self._begin(step + 1, self._controls(step + 1), redraws)
        return batch

    @property
    def capabilities(self) -> Capabilities:
        """What the generator can do."""
        return self._sampler.capabilities

    def events(self, step: int) -> list[Event]:
        """What happened to the tasks while the batch of a step was sampled."""
        if self._inference_copy is None:
            return self._rollout_batcher.events(step)
        happened, self._events = self._events, []  # dated when the batch was there: the next one is on its way
        return happened

    def upcoming(self) -> list[Prompt]:
        """The prompts that the next batch is sampled from, before any gives way to others."""
        return self._rollout_batcher.upcoming() if self._next is None else self._next.prompts

    @property
    def pending(self) -> dict[str, Any]:
        """The batch on its way, as JSON; empty where there is none."""
        if self._next is None:
            return {}
        drawn_with = {"step": self._next.step, "redraws": self._next.redraws, "version": self._next.version}
        return {**drawn_with, "temperature": self._next.controls.temperature}

    def state_dict(self) -> dict[str, Any]:
        """The batch on its way and the weights that sample it: sampled again from :attr:`position`, it is the same."""
        weights: list[Tensor] = []
        if self._inference_copy is not None and self._next is not None:
            weights = self._inference_copy.copied(self._policy)
        return {"pending": self.pending, "weights": weights}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; a batch on its way is sampled when its step asks for it."""
        pending = state["pending"]
        if not pending or self._inference_copy is None:
            return
        for weight, saved in zip(self._inference_copy.copied(self._policy), state["weights"], strict=True):
            weight.copy_(saved)
        step, self._inference_copy.version = int(pending["step"]), int(pending["version"])
        controls = self._controls(step).model_copy(update={"temperature": pending["temperature"]})
        self._next = self._batch(step, controls, int(pending["redraws"]), self._inference_copy.version)

    @property
    def position(self) -> PromptPosition:
        """The position in the prompts, for a checkpoint."""
        return PromptPosition(self)

    def unread_position(self) -> dict[str, Any]:
        """Position in the prompts before the first batch that has not been handed out, as JSON."""
        return self._stream.state_dict() if self._next is None else self._next.stream

    def go_to(self, position: Mapping[str, Any]) -> None:
        """Go to a position that :meth:`unread_position` gave."""
        self.settle()
        self._stream.load_state_dict(position)

    def settle(self) -> None:
        """Wait until no task is in use, whatever becomes of the batch on its way."""
        if self._next is not None and self._next.drawing is not None:
            with self._loop.giving_up():
                self._loop.wait(self._next.drawing)

    def forget(self) -> None:
        """Give back the prompts of the batch on its way; the weights that sampled it are gone."""
        self.settle()
        if self._next is not None:
            self._stream.load_state_dict(self._next.stream)
            self._next = None

    def close(self) -> None:
        """Call off the batch on its way; where it stands can still be saved."""
        if self._next is not None:
            self._call_off(self._next)
        if self._generator is not None:
            self._loop.run(self._generator.close())

    def _batch(self, step: int, controls: Sampling, redraws: int, version: int) -> _Batch:
        prompts = self._rollout_batcher.upcoming() if self._inference_copy is not None else []
        return _Batch(step, controls, redraws, version, self._stream.state_dict(), prompts)

    def _begin(self, step: int, controls: Sampling, redraws: int) -> None:
        """Begin a batch with the newest weights."""
        if self._inference_copy is not None:
            self._inference_copy.follow(self._policy)
            self._events += stale_weights(self._inference_copy, self._policy, step)
        self._next = self._batch(step, controls, redraws, self._policy.version)
        self._start(self._next)

    def _start(self, batch: _Batch) -> None:
        batch.drawing = self._loop.submit(self._draw(batch))

    async def _draw(self, batch: _Batch) -> Collected:
        batch.task = asyncio.current_task()
        return await self._rollout_batcher.draw(batch.step, batch.controls, batch.redraws)

    def _wait(self) -> Collected:
        """Return the batch on its way, with how old it is; nothing is on its way then."""
        batch = self._next
        assert batch is not None  # noqa: S101 - draw() has begun one
        if batch.drawing is None:
            self._start(batch)
        assert batch.drawing is not None  # noqa: S101 - just begun
        if self._inference_copy is None:
            self._next = None
            return self._result(batch)
        self.settle()
        result = self._result(batch)
        self._next = None
        result.behind = self._policy.version - batch.version
        result.values[metric.OFF_POLICY] = float(result.behind)
        if self._keeps and result.behind:
            result.sampler_weights = [
                weight.to("cpu", copy=True) for weight in self._inference_copy.copied(self._policy)
            ]
        self._events += self._rollout_batcher.events(batch.step)
        return result

    def _result(self, batch: _Batch) -> Collected:
        """Wait for a batch; one that could not be sampled can be begun again."""
        assert batch.drawing is not None  # noqa: S101 - it has been begun
        try:
            self._loop.wait(batch.drawing)
            return batch.drawing.result()
        except BaseException:
            self._call_off(batch)
            batch.drawing = None
            raise

    def _call_off(self, batch: _Batch) -> None:
        """End the sampling of a batch, and wait until it has ended."""
        if batch.drawing is not None:
            batch.drawing.cancel()
        if batch.task is not None:
            self._loop.run(_ended(batch.task))


class Positioned(Protocol):
    """Hands out what was sampled from prompts."""

    def unread_position(self) -> dict[str, Any]:
        """Position in the prompts before the first one whose rollouts have not been handed out, as JSON."""
        ...

    def go_to(self, position: Mapping[str, Any]) -> None:
        """Go to a position that :meth:`unread_position` gave."""
        ...


class PromptPosition:
    """The position in the prompts before the first batch that has not been handed out.

    Args:
        batches: Whose position it is.
    """

    def __init__(self, batches: Positioned) -> None:
        self._batches = batches

    def state_dict(self) -> dict[str, Any]:
        """Return the position, as JSON."""
        return self._batches.unread_position()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position that :meth:`state_dict` gave."""
        self._batches.go_to(state)


async def _ended(task: asyncio.Task[Any]) -> None:
    await asyncio.wait([task], timeout=PATIENCE_S)
