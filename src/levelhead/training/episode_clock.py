"""The turns of the episodes that are live side by side: how long all wait for tokens, and when others begin."""

from __future__ import annotations

import asyncio
import time


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
