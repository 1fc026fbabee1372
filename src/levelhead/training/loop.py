"""One long-lived event loop for everything asynchronous: rewards, judges, environments."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from types import FrameType
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class WaitInterruptedError(KeyboardInterrupt):
    """The first interrupt came while scores were waited for: the step is given up, and what was before it stands."""


class Awaits(Protocol):
    """Where a thread waits for coroutines."""

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a coroutine."""
        ...

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine's result."""
        ...

    def giving_up(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the main thread waits for what the first interrupt ends the wait for."""
        ...


class EventLoop:
    """An event loop in a background thread; every coroutine of a run is awaited on it, from any thread.

    Attributes:
        gives_up: Whether the main thread waits for something that an interrupt may end at once.
    """

    def __init__(self) -> None:
        self.gives_up = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="levelhead-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine's result; an interrupt cancels it."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a coroutine; the result may be waited for, or the future cancelled."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    @contextlib.contextmanager
    def giving_up(self) -> Iterator[None]:
        """Inside, the main thread waits for what the first interrupt ends the wait for; other threads as ever."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self.gives_up = True
        try:
            yield
        finally:
            self.gives_up = False

    def close(self) -> None:
        """Stop the loop and its thread, what still runs there being cancelled."""
        with contextlib.suppress(Exception):
            self.submit(_cancel_all()).result(timeout=2)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        if not self._thread.is_alive():
            self._loop.close()


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


class Strand:
    """The coroutines of one thread, which another thread can call off.

    Args:
        loop: Where they are awaited.
    """

    def __init__(self, loop: Awaits) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._current: Future[Any] | None = None
        self._off = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine's result.

        Raises:
            CancelledError: The strand has been called off.
        """
        return self.submit(coroutine).result()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a coroutine.

        Raises:
            CancelledError: The strand has been called off.
        """
        with self._lock:
            if self._off:
                coroutine.close()
                raise CancelledError
            future = self._loop.submit(coroutine)
            self._current = future
        return future

    def giving_up(self) -> contextlib.AbstractContextManager[None]:
        """See :meth:`Awaits.giving_up`."""
        return self._loop.giving_up()

    def call_off(self) -> None:
        """Cancel what is waited for, and refuse what comes."""
        with self._lock:
            self._off = True
            if self._current is not None:
                self._current.cancel()
