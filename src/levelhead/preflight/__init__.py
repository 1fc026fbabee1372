"""The checks that run before a training run."""

from levelhead.preflight.result import Check, PreflightError, Report
from levelhead.preflight.run import FAMILIES, preflight

__all__ = ["FAMILIES", "Check", "PreflightError", "Report", "preflight"]
