"""What a command does before its work: imports and set-up, without the garbage collector in between."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_held = False
"""Whether what is there after the set-up stays to the end."""


@contextlib.contextmanager
def one_command() -> Iterator[None]:
    """Take what the set-up makes inside as something that stays: the process runs one command and ends."""
    global _held
    _held = True
    try:
        yield
    finally:
        _held = False
        gc.unfreeze()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Switch the garbage collector off inside, and on again afterwards if it was on.

    Imports and set-up make some million objects that stay.  The collector would look at all of them again and again
    and find nothing, which takes a sixth of the time.  Within
    :func:`one_command` it is spared them to the end.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if _held:
            gc.freeze()
        if collects:
            gc.enable()
