"""Endless, resumable streams of training prompts: what every one does, and the balanced one."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from levelhead.errors import InputError
from levelhead.records import Group, Prompt
from levelhead.rollout.draws import derive
from levelhead.tasks.base import Task
from levelhead.training.stateful import Stateful

OTHER_STREAM = (
    "the checkpoint was made with other tasks or another grpo.curriculum; resume with the recipe that began it"
)
"""Error message where a saved state does not fit."""


class Stream(Stateful, Protocol):
    """Chooses the prompts that are trained on."""

    def take(self, n: int) -> list[Prompt]:
        """Return the next n prompts."""
        ...

    def peek(self, n: int) -> list[Prompt]:
        """Return what :meth:`take` would, and stay where it is."""
        ...

    def learn(self, groups: Sequence[Group], step: int) -> None:
        """Take note of how the policy did on prompts of this stream, at a step counted from 1."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return what the choice of prompts stands at."""
        ...


class PromptStream:
    """Prompts of several tasks in the proportion of their weights, epoch after epoch in a new order.

    Args:
        tasks: What to draw from.
        weights: One positive weight a task.
        seed: Seed of the orders.
    """

    def __init__(self, tasks: Sequence[Task], weights: Sequence[float], seed: int) -> None:
        self._tasks = list(tasks)
        self._shares = [weight / sum(weights) for weight in weights]
        self._seed = seed
        self._taken = [0] * len(tasks)
        self._epochs = [0] * len(tasks)
        self._offsets = [0] * len(tasks)
        self._iterators: list[Iterator[Prompt] | None] = [None] * len(tasks)

    def take(self, n: int) -> list[Prompt]:
        """Return the next n prompts; over time each task has its share, within one prompt."""
        return [self._next(self._due()) for _ in range(n)]

    def peek(self, n: int) -> list[Prompt]:
        """Return the next n prompts, and stay where it is."""
        taken, epochs, offsets = [*self._taken], [*self._epochs], [*self._offsets]
        iterators = [copy.copy(iterator) for iterator in self._iterators]
        try:
            return self.take(n)
        finally:
            self._taken, self._epochs, self._offsets, self._iterators = taken, epochs, offsets, iterators

    def learn(self, groups: Sequence[Group], step: int) -> None:
        """Do nothing: what is sampled does not depend on outcomes."""

    def metrics(self) -> dict[str, float]:
        """Return nothing: shares are those of the recipe."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the position, as JSON."""
        names = [task.name for task in self._tasks]
        return {
            name: {"taken": taken, "epoch": epoch, "offset": offset}
            for name, taken, epoch, offset in zip(names, self._taken, self._epochs, self._offsets, strict=True)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position that :meth:`state_dict` gave.

        Raises:
            InputError: The state is that of other tasks, or of another kind of stream.
        """
        if not all(task.name in state for task in self._tasks):
            raise InputError(OTHER_STREAM)
        for index, task in enumerate(self._tasks):
            position = state[task.name]
            self._taken[index] = int(position["taken"])
            self._epochs[index] = int(position["epoch"])
            self._offsets[index] = 0
            self._iterators[index] = None
            for _ in range(int(position["offset"])):
                self._draw(index)

    def _due(self) -> int:
        """The task that lags most behind its share."""
        total = sum(self._taken) + 1
        lags = [share * total - taken for share, taken in zip(self._shares, self._taken, strict=True)]
        return lags.index(max(lags))

    def _next(self, index: int) -> Prompt:
        self._taken[index] += 1
        prompt = self._draw(index)
        if prompt is None:
            self._epochs[index] += 1
            self._offsets[index] = 0
            self._iterators[index] = None
            prompt = self._draw(index)
        if prompt is None:
            raise InputError(f"task {self._tasks[index].name!r} has no training prompts; check its path and limit")
        return prompt

    def _draw(self, index: int) -> Prompt | None:
        task = self._tasks[index]
        iterator = self._iterators[index]
        if iterator is None:
            order = derive(self._seed, "order", task.name, self._epochs[index])
            (iterator,) = itertools.tee(task.prompts("train", order), 1)  # one that can be copied, for a look ahead
            self._iterators[index] = iterator
        prompt = next(iterator, None)
        if prompt is not None:
            self._offsets[index] += 1
        return prompt
