"""One long-lived event loop for everything asynchronous: rewards, judges, environments."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, wait
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


class WaitInterruptedError(KeyboardInterrupt):
    """The first interrupt came while scores were waited for: the step is given up, and what was before it stands."""


class EventLoop:
    """An event loop in a background thread; every coroutine of a run is awaited on it, from any thread."""

    def __init__(self) -> None:
        self._awaited = False
        self._giving_up = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="levelhead-loop", daemon=True)
        self._thread.start()

    @property
    def gives_up(self) -> bool:
        """Whether the main thread waits for something that an interrupt may end at once."""
        return self._awaited and self._giving_up > 0

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine's result; an interrupt cancels it."""
        future = self.submit(coroutine)
        try:
            self.wait(future)
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a coroutine; the result may be waited for, or the future cancelled."""
        return asyncio.run_coroutine_threadsafe(_contained(coroutine), self._loop)

    def wait(self, future: Future[Any]) -> None:
        """Wait until what :meth:`submit` began has ended; an interrupt ends the wait alone."""
        if threading.current_thread() is not threading.main_thread():
            wait([future])
            return
        self._awaited = True
        try:
            wait([future])
        finally:
            self._awaited = False

    @contextlib.contextmanager
    def giving_up(self) -> Iterator[None]:
        """Inside, the first interrupt ends the main thread's wait for this loop; see :attr:`gives_up`."""
        self._giving_up += 1
        try:
            yield
        finally:
            self._giving_up -= 1

    def close(self) -> None:
        """Stop the loop and its thread, what still runs there being cancelled."""
        with contextlib.suppress(Exception):
            self.submit(_cancel_all()).result(timeout=2)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        if not self._thread.is_alive():
            self._loop.close()


async def _contained(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine; a ``SystemExit`` in it does not end the loop, for which others wait too.

    Raises:
        RuntimeError: It asked to end the program.
    """
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"{type(error).__name__} was raised where scores or pages are waited for") from error


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=1)


class Interrupts:
    """What Ctrl-C and ``SIGTERM`` do to a run.

    The first ends it after its step, or at once where scores are waited for; the second ends it at once.

    Args:
        loop: Knows what the main thread waits for.

    Attributes:
        came: Whether there has been one.
    """

    def __init__(self, loop: EventLoop) -> None:
        self.came = False
        self._loop = loop

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Take signals inside; those of other threads than the main one are left as they are."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.came:
            raise KeyboardInterrupt
        self.came = True
        if self._loop.gives_up:
            raise WaitInterruptedError
