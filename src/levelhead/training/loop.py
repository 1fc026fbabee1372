"""One long-lived event loop for everything asynchronous: rewards, judges, environments."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Awaits(Protocol):
    """Where a thread waits for coroutines."""

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a coroutine."""
        ...

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine's result."""
        ...


class EventLoop:
    """An event loop in a background thread; every coroutine of a run is awaited on it, from any thread."""

    def __init__(self) -> None:
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

    def close(self) -> None:
        """Stop the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        if not self._thread.is_alive():
            self._loop.close()


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

    def call_off(self) -> None:
        """Cancel what is waited for, and refuse what comes."""
        with self._lock:
            self._off = True
            if self._current is not None:
                self._current.cancel()
