"""Circumstances that a score must not depend on: global random numbers, and the clock."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

LATER_S = 400 * 86400.0 + 12345.0
"""Seconds that the clock is put forward."""


@contextlib.contextmanager
def other_random_numbers() -> Iterator[None]:
    """Seed every global generator otherwise inside."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002 - the global one is kept
    random.seed(20_240_229)
    np.random.seed(20_240_229)  # noqa: NPY002 - rewards may draw from it
    torch.manual_seed(20_240_229)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002 - restored
        torch.set_rng_state(states[2])


class _LaterDate(dt.date):
    """Today is another day."""

    @classmethod
    def today(cls) -> _LaterDate:
        """Return the shifted day."""
        return cls.fromtimestamp(time.time())


class _LaterTime(dt.datetime):
    """Now is another time."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> _LaterTime:
        """Return the shifted time."""
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> _LaterTime:
        """Return the shifted time, without a zone."""
        return cls.fromtimestamp(time.time(), dt.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> _LaterTime:
        """Return the shifted time."""
        return cls.now()


@contextlib.contextmanager
def later_clock() -> Iterator[None]:
    """Put the clock forward inside, for code that is not a library's: a reward function and what it imports."""
    real = {name: getattr(time, name) for name in ("time", "time_ns", "localtime", "gmtime")}
    later: dict[str, Callable[..., Any]] = {
        "time": lambda: real["time"]() + LATER_S,
        "time_ns": lambda: real["time_ns"]() + int(LATER_S * 1e9),
        "localtime": lambda seconds=None: real["localtime"](time.time() if seconds is None else seconds),
        "gmtime": lambda seconds=None: real["gmtime"](time.time() if seconds is None else seconds),
    }
    swaps: dict[int, Any] = {id(real[name]): later[name] for name in real}
    swaps |= {id(dt.datetime): _LaterTime, id(dt.date): _LaterDate}
    changed = [(time, name, real[name], later[name]) for name in real]
    changed += [(dt, "datetime", dt.datetime, _LaterTime), (dt, "date", dt.date, _LaterDate)]
    for module in _own_modules():
        attributes = [(name, value) for name, value in list(vars(module).items()) if id(value) in swaps]
        changed += [(module, name, value, swaps[id(value)]) for name, value in attributes]
    for owner, name, _, new in changed:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, old, _ in changed:
            setattr(owner, name, old)


def _own_modules() -> list[Any]:
    """Modules that are neither Python's nor installed packages, nor this one."""
    paths = sysconfig.get_paths()
    libraries = tuple(paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
    modules = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not file.startswith(libraries) and module.__name__ != __name__:
            modules.append(module)
    return modules
