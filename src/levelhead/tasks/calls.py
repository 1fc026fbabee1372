"""What calls of the user's functions have in common, in whichever thread they run."""

from __future__ import annotations

import contextlib
import faulthandler
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
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
