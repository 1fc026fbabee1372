"""A mutation: one way to break what a check guards, and the report of a preflight that meets it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from faults.known import FAULTS, inject
from faults.known.registry import replaced
from levelhead.preflight import preflight
from levelhead.preflight.check import Status
from levelhead.preflight.explain import key_of
from levelhead.training.prepare import Setup
from oracle.run import preflight as prove
from preflight_setup import ROWS, closeness, setup_of

Context = contextlib.AbstractContextManager[Any]
Checks = Callable[[], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One way to break what a check guards.

    Attributes:
        check: That must turn red, by its name in the catalogue.
        what: What is broken, in a few words.
        change: Enters the broken state; nothing where the settings are what is broken.
        settings: Recipe keys; without ``change`` they are the mutation, with it they only make room for it.
        reward: Of the task of kind ``function``.
        rows: Its data.
        touch: Breaks the set-up once it is made.
        checks: Makes the checks, where a preflight of :func:`setup_of` is not what is needed.
        healthy: Makes the same checks where nothing is broken.
        status: What red means: a failure, unless the check can do no more than warn.
        proof: Whether a proof of the test suite (``oracle``) must turn red, not a check of the users' preflight.
    """

    check: str
    what: str
    change: Callable[[], Context] = contextlib.nullcontext
    settings: tuple[str, ...] = ()
    reward: Any = closeness
    rows: Sequence[Mapping[str, Any]] = ROWS
    touch: Callable[[Setup], None] | None = None
    checks: Checks | None = None
    healthy: Checks | None = None
    status: Status = "fail"
    proof: bool = False

    @property
    def id(self) -> str:
        """Name of the test."""
        return f"{self.check}: {self.what}"

    @property
    def proved(self) -> bool:
        """Whether a proof of the test suite must turn red, for the users' preflight has no such check."""
        return self.proof or key_of(self.check) is None

    @property
    def changes_code(self) -> bool:
        """Whether the settings alone are sound."""
        return self.change is not contextlib.nullcontext or self.touch is not None

    def statuses(self) -> list[Status]:
        """Return the verdicts of the check once this is broken; none where it was not made."""
        with self.change():
            if self.checks is not None:
                return self._statuses(self.checks())
            setup = setup_of(*self.settings, reward=self.reward, rows=self.rows)
            if self.touch is not None:
                self.touch(setup)
            if self.proved:
                return self._statuses(prove(setup, families=[family_of(self.check)]).checks)
            return self._statuses(preflight(setup, families=[self.check.removesuffix("/TASK")]).checks)

    def sound(self) -> list[Status]:
        """Return its verdicts where nothing is broken."""
        if self.healthy is not None:
            return self._statuses(self.healthy())
        return self._statuses(_sound(family_of(self.check), self.settings if self.changes_code else (), self.proved))

    def _statuses(self, checks: Sequence[Any]) -> list[Status]:
        return [check.status for check in checks if self.check in (check.name, key_of(check.name))]


def family_of(check: str) -> str:
    """The family of checks that makes a check."""
    return check.split("/")[0]


@cache
def _sound(family: str, settings: tuple[str, ...], proof: bool) -> Sequence[Any]:
    return (prove if proof else preflight)(setup_of(*settings), families=[family]).checks


def fault(check: str, name: str, **options: Any) -> Mutation:
    """A known bug of the lab as a mutation."""
    entry = FAULTS[name]
    return Mutation(check, f"`{name}`", lambda: inject(name), entry.settings, **options)


def patch(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], Context]:
    """Return what puts ``make(original)`` in the place of an attribute."""
    return lambda: replaced(owner, name, make)
