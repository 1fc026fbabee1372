"""The checks that run before a training run."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from levelhead.preflight.result import Check, PreflightError, Report
    from levelhead.preflight.run import FAMILIES, preflight

__all__ = ["FAMILIES", "Check", "PreflightError", "Report", "preflight"]

_LAZY = {"FAMILIES": "run", "preflight": "run", "Check": "result", "PreflightError": "result", "Report": "result"}


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that explaining a check needs no torch."""
    if name in _LAZY:
        return getattr(importlib.import_module(f"levelhead.preflight.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'levelhead.preflight' has no attribute {name!r}")
