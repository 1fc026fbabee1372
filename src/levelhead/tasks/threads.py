"""Threads that the user's functions run in where the main thread cannot run them, and the loop of their coroutines.

A Python thread cannot be killed.  One that is given up is a daemon: it keeps no process alive, gets an exception that
ends it at its next line of Python (a call into C that never returns stays), and what it still returns or logs goes
nowhere.  Plain functions run in the main thread (:mod:`levelhead.tasks.main_thread`).  Where a run is started from
another thread, they have a thread each while they run, and use the same ones again, so that a connection opened in
one call can be used in the next.  Coroutines share one event loop for the whole process, for the same reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from levelhead.tasks import main_thread
from levelhead.tasks.main_thread import (
    GivenUpError,
    Outcome,
    OverrunError,
    last_resort,
    leave_behind,
    outcome_of,
    place_of,
)

T = TypeVar("T")

_TIDY_S = 1.0
"""Seconds that a cancelled coroutine has to end before its event loop is given up."""


class SignalError(Exception):
    """A function has tried to handle signals outside the main thread, whether or not it caught the error."""


def without_signals(call: Callable[[], T]) -> Callable[[], T]:
    """Return a call that raises ``SignalError`` where it tries to handle signals outside the main thread.

    Python refuses that with a ``ValueError``, which code that catches exceptions turns into a wrong result.
    """

    def watched() -> T:
        _install_notice()
        _noticed.place = ""
        try:
            return call()
        finally:
            if _noticed.place:
                raise SignalError(
                    f"uses signals (signal.signal at {_noticed.place}), which work in the main thread alone: start "
                    "the run from the main thread, or let the function take its time without them "
                    "(a reward is bounded by tasks[].reward_timeout_s)"
                )

    return watched


_noticed = threading.local()


@functools.cache
def _install_notice() -> None:
    """Have ``signal.signal`` note where it was refused, from now on."""
    original = signal.signal

    @functools.wraps(original)
    def noting(signalnum: Any, handler: Any) -> Any:
        try:
            return original(signalnum, handler)
        except ValueError:
            caller = sys._getframe(1)
            _noticed.place = f"{caller.f_code.co_filename}, line {caller.f_lineno}"
            raise

    signal.signal = noting


def _end(thread: threading.Thread) -> None:
    """Raise in a thread, at its next line of Python."""
    if thread.ident is not None:
        error = ctypes.py_object(GivenUpError)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), error)


class _Worker:
    """A thread that does one call after another."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Outcome]] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._serve, name="reward-function", daemon=True)
        self.thread.start()

    def begin(self, call: Callable[[], Any]) -> Future[Outcome]:
        """Start a call; its future always has a result."""
        future: Future[Outcome] = Future()
        future.set_running_or_notify_cancel()
        self._calls.put((call, future))
        return future

    def give_up(self) -> None:
        """Leave the thread to itself: it ends after the call, or in it where it runs Python."""
        self._calls.put(None)
        _end(self.thread)

    def _serve(self) -> None:
        with contextlib.suppress(GivenUpError):
            while (item := self._calls.get()) is not None:
                call, future = item
                future.set_result(outcome_of(without_signals(call)))


class _Loop:
    """An event loop in a thread, for coroutines of the user's."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._pending: set[Future[Outcome]] = set()
        self._end: BaseException | None = None
        self.thread = threading.Thread(target=self._serve, name="reward-functions-loop", daemon=True)
        self.thread.start()

    @property
    def ended(self) -> bool:
        """Whether it takes no more calls."""
        return self._end is not None

    def begin(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> tuple[Future[Outcome], Callable[[], None]]:
        """Start a coroutine; returns its future, which always has a result, and what cancels it."""
        future: Future[Outcome] = Future()
        future.set_running_or_notify_cancel()
        tasks: list[asyncio.Task[None]] = []

        async def guarded() -> None:
            try:
                outcome = Outcome(await make())
            except BaseException as error:
                outcome = Outcome(error=error)
            self._settle(future, outcome)

        def cancel() -> None:
            self._soon(lambda: [task.cancel() for task in tasks])

        with self._lock:
            if self._end is not None:
                future.set_result(Outcome(error=self._end))
                return future, cancel
            self._pending.add(future)
        self._soon(lambda: tasks.append(self._loop.create_task(guarded())))
        return future, cancel

    def give_up(self) -> None:
        """Take no more calls, and stop when the one that runs lets go."""
        self._close(GivenUpError())
        self._soon(self._loop.stop)
        _end(self.thread)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        end: BaseException = GivenUpError()
        try:
            self._loop.run_forever()
        except BaseException as error:
            end = error
        self._close(end)
        with contextlib.suppress(BaseException):  # tidiness alone
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=_TIDY_S))
            self._loop.close()

    def _close(self, end: BaseException) -> None:
        with self._lock:
            self._end = self._end or end
            unsettled = list(self._pending)
        for future in unsettled:
            self._settle(future, Outcome(error=end))

    def _settle(self, future: Future[Outcome], outcome: Outcome) -> None:
        with self._lock:
            first = future in self._pending
            self._pending.discard(future)
        if first:
            future.set_result(outcome)

    def _soon(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # closed
            self._loop.call_soon_threadsafe(call)


class _Workers:
    """The threads of this process that are idle, and its loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._loop: _Loop | None = None

    def take(self) -> _Worker:
        with self._lock:
            return self._idle.pop() if self._idle else _Worker()

    def put(self, worker: _Worker) -> None:
        with self._lock:
            self._idle.append(worker)

    def loop(self) -> _Loop:
        with self._lock:
            if self._loop is None or self._loop.ended:
                self._loop = _Loop()
            return self._loop


_WORKERS = _Workers()


async def run(call: Callable[[], Any], timeout_s: float | None, file: str = "") -> Outcome:
    """Call a function in the main thread, or else in a thread of its own, and wait for it.

    Args:
        call: Takes nothing.
        timeout_s: Longest wait, in seconds; no bound where ``None``.
        file: Where the function is written, to say at which line a call was that took too long.

    Raises:
        OverrunError: The time is up; the thread is left to itself.  So it is when the wait is cancelled.
    """
    if main_thread.available():
        return await main_thread.run_in_main_thread(call, timeout_s, file)
    before = set(threading.enumerate())
    worker = _WORKERS.take()
    future = worker.begin(call)
    try:
        with last_resort(timeout_s):
            if not await _done(future, timeout_s):
                raise OverrunError(place_of(worker.thread.ident, file))
        return future.result()
    finally:
        if future.done():
            _WORKERS.put(worker)
        else:
            leave_behind(before, worker.thread)
            worker.give_up()


async def run_async(make: Callable[[], Coroutine[Any, Any, Any]], timeout_s: float | None, file: str = "") -> Outcome:
    """Await a coroutine on the event loop of the user's functions; arguments and errors as for :func:`run`.

    A coroutine that does not end when it is cancelled, or that blocks, costs the loop: the next call gets a new one.
    """
    before = set(threading.enumerate())
    loop = _WORKERS.loop()
    future, cancel = loop.begin(make)
    try:
        with last_resort(timeout_s):
            if await _done(future, timeout_s):
                return future.result()
        place = place_of(loop.thread.ident, file)
        cancel()
        await _done(future, _TIDY_S)
        raise OverrunError(place)
    finally:
        if not future.done():
            cancel()
            leave_behind(before, loop.thread)
            loop.give_up()


async def _done(future: Future[Outcome], timeout_s: float | None) -> bool:
    """Wait for a future of another thread; returns whether it has a result now."""
    waits = asyncio.wrap_future(future)
    try:
        await asyncio.wait([waits], timeout=timeout_s)
    finally:
        waits.cancel()  # one that comes too late is told to nobody
    return future.done()
