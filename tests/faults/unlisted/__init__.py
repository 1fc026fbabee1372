"""Faults that no check was written against."""

from faults.unlisted import arithmetic, episodes, objective, rollouts, runs, updates
from faults.unlisted.registry import KINDS, UNLISTED, Kind, Unlisted

__all__ = [
    "KINDS",
    "UNLISTED",
    "Kind",
    "Unlisted",
    "arithmetic",
    "episodes",
    "objective",
    "rollouts",
    "runs",
    "updates",
]
