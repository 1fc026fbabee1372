"""Faults in what users bring: rewards, data, templates, and what is evaluated and saved."""

from faults.brought.cases import BROUGHT, Brought
from faults.brought.look import seen

__all__ = ["BROUGHT", "Brought", "seen"]
