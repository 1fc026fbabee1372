"""Places for episodes that several groups share, so that a slow episode holds up its own group and no other."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque

from levelhead.tasks.base import Task

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
        """Give places back, and wake those who wait for as many as are free now."""
        self._free += places
        self._admit()

    def _admit(self) -> None:
        while self._queue and (self._queue[0][1].cancelled() or self._queue[0][0] <= self._free):
            places, turn = self._queue.popleft()
            if not turn.cancelled():
                self._free -= places
                turn.set_result(None)


class SharedPlaces:
    """The places that the episodes of one group take among those of its task, and the step that the group is for.

    Args:
        rooms: Places of the tasks by name, which all groups share; those of a new task are added.
        done: Steps that are done when the group is scored, as tasks are told.
        steps: Steps of the stage.
    """

    def __init__(self, rooms: dict[str, Room], done: int, steps: int) -> None:
        self.done, self.steps = done, steps
        self._rooms = rooms
        self._room: Room | None = None
        self._left = 0

    async def take(self, task: Task, episodes: int) -> int:
        """Wait for a quarter of a task's places, or as many as there are episodes; returns how many were taken."""
        self._room = self._rooms.setdefault(task.name, Room(task.concurrency or 1 << 30))
        places = min(math.ceil((task.concurrency or _PARTS * episodes) / _PARTS), episodes)
        await self._room.take(places)
        self._left = places
        return places

    def leave(self, places: int | None = None) -> None:
        """Give some places back, or all that are left."""
        if self._room is not None and (places := self._left if places is None else places):
            self._left -= places
            self._room.leave(places)


class EpisodeClock:
    """Adds up the seconds in which every live episode waits for tokens, and lets episodes begin together.

    Where the policy itself samples, nothing is sampled until all live episodes wait, so that an episode which begins
    while others still act gains nothing; and begun together they find more of the pages that they need among those that
    have become free.

    Args:
        live: Episodes at the beginning.
        together: Whether an episode begins only when no other one is acting.
    """

    def __init__(self, live: int, *, together: bool) -> None:
        self.seconds = 0.0
        self._live, self._waiting, self._since = live, 0, 0.0
        self._together = together
        self._beginning: list[asyncio.Future[None]] = []

    def __enter__(self) -> None:
        self._count(waiting=1)

    def __exit__(self, *_: object) -> None:
        self._count(waiting=-1)

    async def turn_over(self) -> None:
        """Wait until every other live episode waits for tokens, or to begin; not at all where they need not."""
        if self._together:
            self._beginning.append(asyncio.get_running_loop().create_future())
            mine = self._beginning[-1]
            self._release()
            await mine

    def leave(self) -> None:
        """One episode fewer is live."""
        self._count(live=-1)

    def _count(self, live: int = 0, waiting: int = 0) -> None:
        now, before = time.perf_counter(), 0 < self._live == self._waiting
        self._live, self._waiting = self._live + live, self._waiting + waiting
        after = 0 < self._live == self._waiting
        if before and not after:
            self.seconds += now - self._since
        elif after and not before:
            self._since = now
        self._release()

    def _release(self) -> None:
        if self._waiting + len(self._beginning) >= self._live:
            beginning, self._beginning = self._beginning, []
            for one in beginning:
                if not one.done():
                    one.set_result(None)
