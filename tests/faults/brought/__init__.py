"""Faults in what users bring: rewards, data, templates, and what is evaluated and saved."""

from faults.brought import data, rewards
from faults.brought.cases import BROUGHT, Brought
from faults.brought.look import names, seen

__all__ = ["BROUGHT", "Brought", "data", "names", "rewards", "seen"]
