"""Known bugs, on purpose: mistakes that post-training code really makes, behind names, for the checks to be tried on.

Each fault is a context manager that changes our own classes while it is entered, and puts them back, or a setting
that is known to break runs.  No recipe can reach one: they are entered from tests, and by ``bench/fault_matrix.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["tokens", "signs", "data", "configuration"]
KINDS: dict[Kind, str] = {
    "tokens": "tokens and masks",
    "signs": "signs and scales",
    "data": "data and reward",
    "configuration": "configuration",
}
"""Kinds of fault, with their headings."""
Change = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A known bug.

    Attributes:
        name: By which it is switched on.
        story: What goes wrong, in one line.
        change: Context manager that puts it into our code.
        settings: Recipe keys without which it has no effect; a fault of configuration is nothing else.
        kind: Of fault.
    """

    name: str
    story: str
    change: Change
    settings: tuple[str, ...] = ()
    kind: Kind = "tokens"


FAULTS: dict[str, Fault] = {}


def inject(name: str) -> contextlib.AbstractContextManager[None]:
    """Return the context manager of a fault.

    Raises:
        KeyError: There is no fault of this name.
    """
    return FAULTS[name].change()


def fault(
    name: str, story: str, *settings: str, kind: Kind = "tokens"
) -> Callable[[Callable[[], Iterator[None]]], Change]:
    """Register a generator of one yield as a fault."""

    def register(function: Callable[[], Iterator[None]]) -> Change:
        change = contextlib.contextmanager(function)
        FAULTS[name] = Fault(name, story, change, settings, kind)
        return change

    return register


def misconfigured(name: str, story: str, *settings: str) -> None:
    """Register settings as a fault."""
    FAULTS[name] = Fault(name, story, contextlib.nullcontext, settings, "configuration")


@contextlib.contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Put ``make(original)`` in the place of an attribute."""
    original = owner.__dict__[name] if name in vars(owner) else getattr(owner, name)  # imported on first use
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)
