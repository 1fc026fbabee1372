"""Keeping other processes of the same user out of this one."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4

_lock = threading.Lock()
_depth = 0
_before = 1


@contextmanager
def hidden() -> Iterator[None]:
    """Close this process's memory, environment and descriptors in ``/proc`` to others of its user.

    The process is not dumpable meanwhile: a debugger of the same user cannot attach, and a crash leaves no core.  It
    may be entered from several threads at once; the last one to leave restores what was before.
    """
    global _depth, _before
    if sys.platform != "linux":
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with _lock:
        if _depth == 0:
            _before = libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
            libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            # The kernel takes 0 or 1 here; any other value is its own.
            if _depth == 0 and _before == 1:
                libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
