"""Draws a batch ahead (``grpo.async: 1``): the rollouts of the next step come in while this one trains.

Step s trains on the batch of the weights that step s - 1 started from, the first step on one of its own weights.  When
a batch is handed out, a copy of the trained weights takes over their newest values and begins the next batch in a
thread of its own.  Which weights draw which prompts by which seed depends on the step alone, so that timing changes no
number.  Batches are drawn one after the other, and nothing else uses the tasks meanwhile: an evaluation waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from levelhead import metrics as metric
from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import Sampling
from levelhead.recipe.training import Grpo
from levelhead.records import Event, Prompt
from levelhead.rollout.inprocess import InProcessSampler
from levelhead.training.collect import Collected, Collector
from levelhead.training.drawer import Drawer
from levelhead.training.optim import Updater
from levelhead.training.stream import Stream


@dataclass(slots=True)
class _Batch:
    """A batch on its way.

    Attributes:
        step: That will train on it.
        controls: With which it is drawn.
        redraws: Bound of the rounds of groups without contrast.
        version: Updates that the weights which draw it have seen.
        stream: Position in the prompts before it.
        thread: That draws it; ``None`` before it has begun.
        found: The batch, once it is there.
        error: What kept it from being drawn.
        prompts: That it begins with.
    """

    step: int
    controls: Sampling
    redraws: int
    version: int
    stream: dict[str, Any]
    thread: threading.Thread | None = None
    found: Collected | None = None
    error: BaseException | None = None
    prompts: list[Prompt] = field(default_factory=list)


class Ahead(Drawer):
    """Fills the batch of the next step while the one at hand is trained on.

    Args:
        stream: Chooses prompts.
        collector: Scores rollouts; draws with the copy of the policy here.
        recipe: The ``grpo`` section.
        seed: Of every draw.
        policy: What is trained.
        updater: Its optimizer.
        controls: Returns the sampling controls of a step, as the knobs stand.
        keeps: Whether to hand out, with a batch, the weights that drew it.
    """

    def __init__(
        self,
        stream: Stream,
        collector: Collector,
        recipe: Grpo,
        seed: int,
        *,
        policy: Policy,
        updater: Updater,
        controls: Callable[[int], Sampling],
        keeps: bool,
    ) -> None:
        self._policy, self._updater, self._controls, self._keeps = policy, updater, controls, keeps
        self._twin = policy.twin()
        self._sampler = InProcessSampler(self._twin)
        apart, self._strand = collector.apart(self._sampler)
        self._next: _Batch | None = None
        self._events: list[Event] = []
        super().__init__(stream, apart, recipe, seed)

    def draw(self, step: int, controls: Sampling, redraws: int = 0) -> Collected:
        """Hand out the batch of a step, and begin the next one.

        The controls and the bound are those of batches that are begun now: of the next one, and of this one only where
        it has not been begun before.

        Raises:
            Exception: What kept the batch from being drawn; it can be asked for again.
        """
        if self._next is None:
            self._begin(step, controls, redraws)
        found = self._wait()
        if step < self._recipe.steps:
            self._begin(step + 1, self._controls(step + 1), redraws)
        else:
            self._next = None
        return found

    def events(self, step: int) -> list[Event]:  # noqa: ARG002 - dated when the batch was there
        """What happened to the tasks while the batch of a step was drawn."""
        happened, self._events = self._events, []
        return happened

    def state(self) -> dict[str, Any]:
        """Position in the prompts before the batch that is on its way."""
        return super().state() if self._next is None else self._next.stream

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go to a position that :meth:`state` gave."""
        self.settle()
        super().load_state(state)

    def upcoming(self) -> list[Prompt]:
        """The prompts of the batch that is on its way."""
        return self._peek() if self._next is None else self._next.prompts

    def pending(self) -> dict[str, Any]:
        """The batch on its way: drawn again from here, by the weights in :meth:`tensors`, it is the same."""
        if self._next is None:
            return {}
        chosen = {"step": self._next.step, "redraws": self._next.redraws, "version": self._next.version}
        return {**chosen, "temperature": self._next.controls.temperature}

    def tensors(self) -> list[Tensor]:
        """The copied weights."""
        return self._twin.copied(self._policy) if self._next is not None else []

    @torch.no_grad()
    def resume(self, pending: Mapping[str, Any], weights: Sequence[Tensor]) -> None:
        """Take up what was :meth:`pending`; it is drawn when its step asks for it."""
        if not pending:
            return
        for mine, saved in zip(self._twin.copied(self._policy), weights, strict=True):
            mine.copy_(saved)
        step, version = int(pending["step"]), int(pending["version"])
        controls = self._controls(step).model_copy(update={"temperature": pending["temperature"]})
        self._sampler.sync(self._twin, version)
        state, prompts = self._stream.state(), self._peek()
        self._next = _Batch(step, controls, int(pending["redraws"]), version, state, prompts=prompts)

    def settle(self) -> None:
        """Wait for the batch on its way, whatever becomes of it."""
        if self._next is not None and self._next.thread is not None:
            with self._strand.giving_up():
                self._next.thread.join()

    def forget(self) -> None:
        """Drop the batch on its way; its prompts come again."""
        self.settle()
        if self._next is not None:
            self._stream.load_state(self._next.stream)
            self._next = None

    def close(self) -> None:
        """Call off the batch on its way and wait until its thread has ended."""
        self._sampler.called_off = True
        self._strand.call_off()
        self.settle()

    def _begin(self, step: int, controls: Sampling, redraws: int) -> None:
        """Begin a batch with the newest weights."""
        self._twin.follow(self._policy)
        self._sampler.sync(self._twin, self._updater.done)
        self._next = _Batch(step, controls, redraws, self._updater.done, self._stream.state(), prompts=self._peek())
        self._start(self._next)

    def _peek(self) -> list[Prompt]:
        return super().upcoming()

    def _start(self, batch: _Batch) -> None:
        threads = torch.get_num_threads()
        batch.thread = threading.Thread(target=self._run, args=(batch, threads), name="levelhead-ahead", daemon=True)
        batch.thread.start()

    def _run(self, batch: _Batch, threads: int) -> None:
        """Draw a batch, in its thread."""
        torch.set_num_threads(threads)  # a new thread would take as many as there are cores
        try:
            batch.found = super().draw(batch.step, batch.controls, batch.redraws)
        except BaseException as error:
            batch.error = error

    def _wait(self) -> Collected:
        """The batch on its way, with how old it is; nothing is on its way then."""
        batch = self._next
        assert batch is not None  # noqa: S101 - draw() has begun one
        if batch.thread is None:
            self._start(batch)
        self.settle()
        if batch.found is None:
            error, batch.thread, batch.error = batch.error, None, None
            raise error or CancelledError
        found = batch.found
        found.behind = self._updater.done - batch.version
        found.values[metric.OFF_POLICY] = float(found.behind)
        if self._keeps and found.behind:
            found.drew = [weight.to("cpu", copy=True) for weight in self._twin.copied(self._policy)]
        self._events += super().events(batch.step)
        return found
