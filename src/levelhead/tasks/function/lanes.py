"""Threads that the user's functions run in, so that whoever waits for one can give up.

A Python thread cannot be killed.  One that is given up is a daemon: it keeps no process alive, gets an exception that
ends it at its next line of Python (a call into C that never returns stays), and what it still returns or logs goes
nowhere.  Plain functions have a thread each while they run, and use the same ones again, so that a connection opened in
one call can be used in the next.  Coroutines share one event loop for the whole process, for the same reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from types import FrameType
from typing import Any

LAST_RESORT_S = 60.0
"""Seconds after its time-out at which a call that lets no other thread run (a regular expression) ends the process."""
_TIDY_S = 1.0
"""Seconds that a cancelled coroutine has to end before its event loop is given up."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call: a value, or whatever it raised, ``SystemExit`` and ``KeyboardInterrupt`` included."""

    value: Any = None
    error: BaseException | None = None


class OverrunError(Exception):
    """A call took longer than it may.

    Attributes:
        place: Where it was then (file and line); empty where that is not known.
    """

    def __init__(self, place: str = "") -> None:
        super().__init__(place)
        self.place = place


class _GivenUpError(SystemExit):
    """Ends a thread that nobody waits for any more; threads end by a ``SystemExit`` without a word."""


def _end(thread: threading.Thread) -> None:
    """Raise in a thread, at its next line of Python."""
    if thread.ident is not None:
        error = ctypes.py_object(_GivenUpError)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), error)


class _Lane:
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
        with contextlib.suppress(_GivenUpError):
            while (item := self._calls.get()) is not None:
                call, future = item
                future.set_result(_outcome(call))


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
        self._close(_GivenUpError())
        self._soon(self._loop.stop)
        _end(self.thread)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        end: BaseException = _GivenUpError()
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
            left = list(self._pending)
        for future in left:
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


class _Lanes:
    """The threads of this process: idle ones, and how many were left to themselves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Lane] = []
        self._loop: _Loop | None = None
        self._stuck: list[threading.Thread] = []

    def take(self) -> _Lane:
        with self._lock:
            return self._idle.pop() if self._idle else _Lane()

    def put(self, lane: _Lane) -> None:
        with self._lock:
            self._idle.append(lane)

    def loop(self) -> _Loop:
        with self._lock:
            if self._loop is None or self._loop.ended:
                self._loop = _Loop()
            return self._loop

    def give_up(self, lane: _Lane | _Loop, before: set[threading.Thread]) -> None:
        """Leave a thread to itself, and note which others its call has started; ``before`` are those before it."""
        with self._lock:
            self._stuck += [one for one in threading.enumerate() if one not in before and one is not lane.thread]
        lane.give_up()

    def stuck(self) -> bool:
        with self._lock:
            self._stuck = [one for one in self._stuck if one.is_alive()]
            return bool(self._stuck)


_LANES = _Lanes()


def keep_alive() -> bool:
    """Return whether threads that given-up calls have started (a pool's) would keep the process from ending."""
    return _LANES.stuck()


async def run(call: Callable[[], Any], timeout_s: float | None, file: str = "") -> Outcome:
    """Call a function in a thread of its own and wait for it.

    Args:
        call: Takes nothing.
        timeout_s: Longest wait, in seconds; no bound where ``None``.
        file: Where the function is written, to say at which line a call was that took too long.

    Raises:
        OverrunError: The time is up; the thread is left to itself.  So it is when the wait is cancelled.
    """
    before = set(threading.enumerate())
    lane = _LANES.take()
    future = lane.begin(call)
    try:
        with _last_resort(timeout_s):
            if not await _done(future, timeout_s):
                raise OverrunError(_place(lane.thread, file))
        return future.result()
    finally:
        if future.done():
            _LANES.put(lane)
        else:
            _LANES.give_up(lane, before)


async def run_async(make: Callable[[], Coroutine[Any, Any, Any]], timeout_s: float | None, file: str = "") -> Outcome:
    """Await a coroutine on the event loop of the user's functions; arguments and errors as for :func:`run`.

    A coroutine that does not end when it is cancelled, or that blocks, costs the loop: the next call gets a new one.
    """
    before = set(threading.enumerate())
    loop = _LANES.loop()
    future, cancel = loop.begin(make)
    try:
        with _last_resort(timeout_s):
            if await _done(future, timeout_s):
                return future.result()
        place = _place(loop.thread, file)
        cancel()
        await _done(future, _TIDY_S)
        raise OverrunError(place)
    finally:
        if not future.done():
            cancel()
            _LANES.give_up(loop, before)


async def _done(future: Future[Outcome], timeout_s: float | None) -> bool:
    """Wait for a future of another thread; returns whether it has a result now."""
    waits = asyncio.wrap_future(future)
    try:
        await asyncio.wait([waits], timeout=timeout_s)
    finally:
        waits.cancel()  # one that comes too late is told to nobody
    return future.done()


def _outcome(call: Callable[[], Any]) -> Outcome:
    try:
        return Outcome(call())
    except BaseException as error:
        return Outcome(error=error)


def _place(thread: threading.Thread, file: str) -> str:
    """File and line that a thread is at, in the innermost frame of a file; empty where it is in none."""
    frame: FrameType | None = sys._current_frames().get(thread.ident or 0)
    frames = traceback.extract_stack(frame) if frame is not None else []
    own = [one for one in frames if one.filename == file]
    last = own[-1] if own else None
    return f"{last.filename}, line {last.lineno}" if last is not None else ""


_watched: dict[object, float] = {}
_watch = threading.Lock()


@contextlib.contextmanager
def _last_resort(timeout_s: float | None) -> Iterator[None]:
    """End the process, all threads' lines on stderr, where a call outlives its time-out by far.

    No other thread gets to run beside a call that keeps the interpreter to itself, so that neither a time-out nor an
    interrupt reaches it; ``faulthandler`` does not need the interpreter.
    """
    if timeout_s is None:
        yield
        return
    key = object()
    _rewatch(key, time.monotonic() + timeout_s + LAST_RESORT_S)
    try:
        yield
    finally:
        _rewatch(key, None)


def _rewatch(key: object, deadline: float | None) -> None:
    """Add or take away a deadline, and set the alarm to the last one."""
    with _watch:
        if deadline is None:
            _watched.pop(key, None)
        else:
            _watched[key] = deadline
        if not _watched:
            faulthandler.cancel_dump_traceback_later()
            return
        left = max(_watched.values()) - time.monotonic()
        if sys.__stderr__ is None:
            return
        with contextlib.suppress(ValueError, OSError, AttributeError, RuntimeError):  # stderr is no file
            faulthandler.dump_traceback_later(max(left, LAST_RESORT_S), exit=True, file=sys.__stderr__)
