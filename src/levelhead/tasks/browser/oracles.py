"""Oracles."""

from __future__ import annotations

from collections.abc import Callable

from levelhead.tasks.browser.actions import Action
from levelhead.tasks.browser.view import View

Oracle = Callable[[View, int], Action]
ORACLES: dict[str, Oracle] = {}
