"""The checks that run before a training run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check, Message, Outcome, PreflightError, Report

if TYPE_CHECKING:
    from levelhead.preflight.checks import CHECKS
    from levelhead.preflight.run import preflight

__all__ = ["CHECKS", "Check", "Message", "Outcome", "PreflightError", "Report", "preflight"]


def __getattr__(name: str) -> Any:
    """Import what makes checks on first use, so that explaining one needs no torch."""
    if name == "CHECKS":
        from levelhead.preflight.checks import CHECKS

        return CHECKS
    if name == "preflight":
        from levelhead.preflight.run import preflight

        return preflight
    raise AttributeError(f"module 'levelhead.preflight' has no attribute {name!r}")
