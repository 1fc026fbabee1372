"""Whatever check a test of this folder makes, and does not pass, must have its Chinese."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from levelhead.preflight.result import Check
from preflight.shown_in_chinese import left

MADE: list[Check] = []
"""Checks that were made for the test at hand, by its fixtures as well."""
_make = Check.__init__


def _noted(self: Check, *args: Any, **options: Any) -> None:
    _make(self, *args, **options)
    MADE.append(self)


Check.__init__ = _noted  # type: ignore[method-assign]


def pytest_runtest_setup() -> None:
    """Forget what other folders' tests have made; what fixtures make for this one comes after."""
    MADE.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Fail a test that saw a warning or a failure which a reader of Chinese would be told in English."""
    outcome = yield
    unsaid = untranslated()
    assert not unsaid, f"preflight/chinese.yaml has no translation of {unsaid}"
    return outcome


def untranslated() -> dict[str, set[str]]:
    """Return what is left in English of the checks that were noted, by message and way out; these are forgotten."""
    loud = {f"{check.name}: {check.message} | {check.fix}": check for check in MADE if check.status != "pass"}
    MADE.clear()
    return {text: words for text, check in loud.items() if (words := _left(text, check))}


_SEEN: dict[str, set[str]] = {}


def _left(text: str, check: Check) -> set[str]:
    if text not in _SEEN:
        _SEEN[text] = left(check)
    return _SEEN[text]
