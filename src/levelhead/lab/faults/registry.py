"""Known bugs, on purpose: mistakes that post-training code really makes, behind names, for the checks to be tried on.

Each fault is a context manager that changes our own classes while it is entered, and puts them back.  Nothing in a
recipe or on the command line can reach one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Change = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A known bug.

    Attributes:
        name: By which it is switched on.
        story: What goes wrong, in one line.
        change: Context manager that puts it into our code.
        settings: Recipe keys without which it has no effect.
    """

    name: str
    story: str
    change: Change
    settings: tuple[str, ...] = ()


FAULTS: dict[str, Fault] = {}


def inject(name: str) -> contextlib.AbstractContextManager[None]:
    """Return the context manager of a fault.

    Raises:
        KeyError: There is no fault of this name.
    """
    return FAULTS[name].change()


def fault(name: str, story: str, *settings: str) -> Callable[[Callable[[], Iterator[None]]], Change]:
    """Register a generator of one yield as a fault."""

    def register(function: Callable[[], Iterator[None]]) -> Change:
        change = contextlib.contextmanager(function)
        FAULTS[name] = Fault(name, story, change, settings)
        return change

    return register


@contextlib.contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Put ``make(original)`` in the place of an attribute."""
    original = owner.__dict__[name]
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)
