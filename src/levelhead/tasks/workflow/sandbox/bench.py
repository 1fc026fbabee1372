"""Where programs wait for a processor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TypeVar

from levelhead.recipe.workflow import SandboxLimits

R = TypeVar("R")


class Bench:
    """Runs sandboxed programs in threads, no more at once than there are processors to spare.

    One belongs to one event loop.
    """

    def __init__(self, limits: SandboxLimits | None = None) -> None:
        """Set the limits of every program."""
        self.limits = limits or SandboxLimits()
        self._seats = asyncio.Semaphore(max(1, (os.cpu_count() or 2) - 1))

    async def run(self, function: Callable[..., R], *args: str) -> R:
        """Call ``function(*args, limits)`` in a thread, once there is a seat."""
        async with self._seats:
            return await asyncio.to_thread(function, *args, self.limits)
