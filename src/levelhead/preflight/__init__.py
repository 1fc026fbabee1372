"""The checks that run before a training run."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from levelhead.preflight.check import Check
    from levelhead.preflight.checks import CHECKS
    from levelhead.preflight.message import Message
    from levelhead.preflight.result import Outcome, PreflightError, Report
    from levelhead.preflight.run import preflight

__all__ = ["CHECKS", "Check", "Message", "Outcome", "PreflightError", "Report", "preflight"]

_LAZY = {
    "CHECKS": "checks",
    "Check": "check",
    "Message": "message",
    "Outcome": "result",
    "PreflightError": "result",
    "Report": "result",
    "preflight": "run",
}


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that explaining a check needs no torch."""
    if name in _LAZY:
        return getattr(importlib.import_module(f"levelhead.preflight.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'levelhead.preflight' has no attribute {name!r}")
