"""Draws and scores single groups side by side, so that a slow episode holds up its own group and no other."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from levelhead.recipe.sampling import Sampling
from levelhead.records import Group, Prompt, Score
from levelhead.rollout.generators.base import Generator
from levelhead.tasks.base import Answer, SingleTurnTask
from levelhead.tasks.metering import JudgeUse, own_account
from levelhead.training.collect import Collected, Collector

_PARTS = 4
"""A group takes one in so many places of its task."""


class Room:
    """Places for episodes of a task, taken several at a time, in the order of asking.

    Args:
        places: How many there are.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, places: int) -> None:
        """Wait until so many are free, and take them."""
        turn = asyncio.get_running_loop().create_future()
        self._queue.append((places, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(places)
            raise

    def leave(self, places: int = 1) -> None:
        """Give places back."""
        self._free += places
        self._admit()

    def _admit(self) -> None:
        while self._queue and (self._queue[0][1].cancelled() or self._queue[0][0] <= self._free):
            places, turn = self._queue.popleft()
            if not turn.cancelled():
                self._free -= places
                turn.set_result(None)


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """One group that is to be drawn.

    Attributes:
        prompt: Of the group.
        controls: With which it is drawn.
        seed: Of its draws.
        done: Steps that are done when it is scored, as tasks are told.
        steps: Steps of the stage.
    """

    prompt: Prompt
    controls: Sampling
    seed: int
    done: int
    steps: int


class GroupCollector(Collector):
    """Collects one group.

    Its episodes take a quarter of the places of their task: a group that is held up leaves room for others, and what a
    place holds ready, such as a web page, serves several episodes of the group in turn.
    How many rollouts are drawn together follows from that, and not from who else is under way: timing changes nothing.

    Args:
        inner: Collects batches of the same tasks.
        generator: Draws the group.
        rooms: Places of the tasks, which all groups share.
        request: The group.
    """

    def __init__(self, inner: Collector, generator: Generator, rooms: dict[str, Room], request: GroupRequest) -> None:
        super().__init__(inner._tasks, inner._codec, generator, inner.loop)
        self._rooms, self._request = rooms, request
        self._left = 0

    async def draw(self, k: int) -> Collected:
        """Draw and score the k rollouts of the group; what its judges have cost is told by their tasks.

        Raises:
            RewardError: A reward function misbehaved and the recipe does not drop such rollouts.
        """
        with own_account():
            return await self.collect([self._request.prompt], k, self._request.controls, self._request.seed)

    def _use(self) -> dict[str, JudgeUse]:
        return {}

    async def _score(self, task: SingleTurnTask, answers: Sequence[Answer]) -> Sequence[Score | None]:
        task.at_step(self._request.done, self._request.steps)
        return await task.score_batch(answers)

    def _room(self, prompts: Sequence[Prompt], most: int) -> int:
        return math.ceil(super()._room(prompts, _PARTS * most) / _PARTS)

    async def _episodes(
        self, prompts: list[Prompt], k: int, controls: Sampling, seed: int, result: Collected
    ) -> list[Group]:
        places = min(self._room(prompts, k), k)
        task = self._tasks[prompts[0].task]
        room = self._rooms.setdefault(task.name, Room(task.concurrency or 1 << 30))
        await room.take(places)
        self._left = places
        try:
            return await super()._episodes(prompts, k, controls, seed, result)
        finally:
            room.leave(self._left)
            self._left = 0

    def _ended(self) -> None:
        self._left -= 1
        self._rooms[self._request.prompt.task].leave()


def together(parts: Sequence[Collected]) -> Collected:
    """Return the groups of several collections as one, in order.

    Seconds are those of the slowest: groups are drawn side by side.
    """
    whole = Collected([group for part in parts for group in part.groups])
    for part in parts:
        whole.add_cost(part)
    for name in ("sample_s", "score_s", "env_s"):
        setattr(whole, name, max((getattr(part, name) for part in parts), default=0.0))
    return whole


def drained(collector: Collector) -> Mapping[str, JudgeUse]:
    """What the judges of a collector's tasks have done since the last call, by task."""
    return Collector._use(collector)
