"""Calls of the user's functions: what all of them have in common, and those that run in the main thread.

There they may rely on what works in no other one.

Signal handlers (``signal.alarm``, which math-verify uses), a database connection that was opened at import, a decimal
context, ``asyncio.get_event_loop``: in any other thread these raise or mean something else, and a reward that catches
exceptions turns that into zeros.  The main thread of a run waits for an event loop while rewards are called on it; it
runs the functions meanwhile, one after another.

A call that takes too long is interrupted by a signal (``SIGURG``, which does nothing by default): its handler raises at
the next line of Python, and also in ``sleep`` and most other calls that wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

LAST_RESORT_S = 60.0
"""Seconds after its time-out at which a call that lets no other thread run (a regular expression) ends the process."""


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


class GivenUpError(SystemExit):
    """Ends a call that nobody waits for any more; threads end by a ``SystemExit`` without a message."""


def outcome_of(call: Callable[[], Any]) -> Outcome:
    """Return what comes of a call."""
    try:
        return Outcome(call())
    except BaseException as error:
        return Outcome(error=error)


def place_of(thread: int | None, file: str) -> str:
    """Return the file and line that a thread is at, in the innermost frame of a file; empty where it is in none."""
    frame: FrameType | None = sys._current_frames().get(thread or 0)
    frames = traceback.extract_stack(frame) if frame is not None else []
    own = [one for one in frames if one.filename == file]
    last = own[-1] if own else None
    return f"{last.filename}, line {last.lineno}" if last is not None else ""


_left_behind: list[threading.Thread] = []


def leave_behind(before: Collection[threading.Thread], own: threading.Thread | None = None) -> None:
    """Note which threads a call that is given up has started.

    Args:
        before: Those that ran before it.
        own: The one that it ran in, where it was a thread of ours.
    """
    _left_behind.extend(one for one in threading.enumerate() if one not in before and one is not own)


def keep_alive() -> bool:
    """Return whether threads that given-up calls have started (a pool's) would keep the process from ending."""
    return any(one.is_alive() and not one.daemon for one in _left_behind)


_watched: dict[object, float] = {}
_watch = threading.Lock()


@contextlib.contextmanager
def last_resort(timeout_s: float | None) -> Iterator[None]:
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
        remaining_s = max(_watched.values()) - time.monotonic()
        if sys.__stderr__ is None:
            return
        with contextlib.suppress(ValueError, OSError, AttributeError, RuntimeError):  # stderr is no file
            faulthandler.dump_traceback_later(max(remaining_s, LAST_RESORT_S), exit=True, file=sys.__stderr__)


_AGAIN_S = 1.0
"""Seconds after which a call that has caught the exception of its interruption is interrupted again."""

Submit = Callable[[Callable[[], Any]], Future[Any]]
"""Hands a function to the main thread."""
_SUBMITS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Submit] = weakref.WeakKeyDictionary()


def register(loop: asyncio.AbstractEventLoop, submit: Submit) -> None:
    """Name the way to the main thread for code that runs on an event loop which the main thread waits for."""
    _SUBMITS[loop] = submit


def available() -> bool:
    """Return whether a function can run in the main thread from where this is called."""
    return hasattr(signal, "pthread_kill") and (_in_main_thread() or asyncio.get_running_loop() in _SUBMITS)


async def run_in_main_thread(call: Callable[[], Any], timeout_s: float | None, file: str = "") -> Outcome:
    """Call a function in the main thread and wait for it; only where :func:`available`.

    Where the main thread itself runs the event loop, the loop stands still meanwhile.

    Args:
        call: Takes nothing.
        timeout_s: Longest that it may take once it has begun, in seconds; no bound where ``None``.
        file: Where the function is written, to say at which line a call was that took too long.

    Raises:
        OverrunError: The time is up; the call was interrupted.  So it is when the wait is cancelled.
    """
    running = _Call(call, timeout_s, file)
    if _in_main_thread():
        return running.run()
    future = _SUBMITS[asyncio.get_running_loop()](running.run)
    try:
        outcome: Outcome = await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if not future.cancel():
            running.cancel()
        raise
    return outcome


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@dataclass(slots=True)
class _Call:
    """One call in the main thread."""

    call: Callable[[], Any]
    timeout_s: float | None
    file: str
    _begun: bool = False
    _before: set[threading.Thread] = field(default_factory=set)
    _ended: threading.Event = field(default_factory=threading.Event)
    _late: bool = False
    _place: str = ""
    _interrupt: BaseException | None = None

    def run(self) -> Outcome:
        """Call the function, in the main thread.

        Raises:
            OverrunError: The time is up.
            BaseException: What the handler of an interrupt (Ctrl-C) raised meanwhile, whether or not the function
                caught it.
        """
        with self._handlers(), no_running_loop(), last_resort(self.timeout_s):
            timer = None if self.timeout_s is None else threading.Timer(self.timeout_s, self._stop)
            try:
                outcome = self._begin(timer)
            except GivenUpError as error:
                outcome = Outcome(error=error)
            finally:
                self._ended.set()
                if timer is not None:
                    timer.cancel()
        if self._interrupt is not None:
            raise self._interrupt
        if self._late:
            raise OverrunError(self._place)
        return outcome

    def cancel(self, after_s: float = 0.0) -> None:
        """Interrupt the call, some seconds from now, without waiting for its end."""
        threading.Thread(target=self._stop, args=(after_s,), name="reward-cancel", daemon=True).start()

    def _begin(self, timer: threading.Timer | None) -> Outcome:
        if self._late:
            return Outcome()
        self._before = set(threading.enumerate())
        self._begun = True
        if timer is not None:
            timer.daemon = True
            timer.start()
        return outcome_of(self.call)

    def _stop(self, after_s: float = 0.0) -> None:
        """Interrupt the main thread until the call has ended."""
        if self._ended.wait(after_s):
            return
        if self._begun:
            leave_behind(self._before)
        main = threading.main_thread().ident
        assert main is not None  # noqa: S101 - it has begun
        self._place, self._late = place_of(main, self.file), True
        while not self._ended.is_set():
            signal.pthread_kill(main, signal.SIGURG)
            self._ended.wait(_AGAIN_S)

    def _raise(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._late and self._begun and not self._ended.is_set():
            raise GivenUpError

    @contextlib.contextmanager
    def _handlers(self) -> Iterator[None]:
        """Inside, the main thread can be interrupted, and what handlers of Ctrl-C raise is remembered."""
        before: dict[int, Any] = {signal.SIGURG: signal.signal(signal.SIGURG, self._raise)}
        number: int
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):
                before[number] = signal.signal(number, self._noted(handler))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)

    def _noted(self, handler: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], None]:
        def note(number: int, frame: FrameType | None) -> None:
            try:
                handler(number, frame)
            except BaseException as error:
                self._interrupt = error
                self.cancel(_AGAIN_S)  # the function may catch it, or wait for its own threads
                raise

        return note


@contextlib.contextmanager
def no_running_loop() -> Iterator[None]:
    """Inside, this thread runs no event loop, as far as asyncio knows: a function may run one of its own."""
    loop = asyncio._get_running_loop()
    if loop is None:
        yield
        return
    task = asyncio.current_task(loop)
    if task is not None:
        asyncio.tasks._leave_task(loop, task)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
        if task is not None:
            asyncio.tasks._enter_task(loop, task)
