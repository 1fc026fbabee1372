"""The catalogue of findings: what can be the matter with a run, how to tell, and what to change.

One catalogue for the guard (while training), the doctor (afterwards) and preflight (before).  The entries stand in
``catalogue/``, a file a family.
"""

from __future__ import annotations

from levelhead.diagnosis.catalogue import contrast, ended, length, numbers, outcome, policy, setup
from levelhead.diagnosis.entry import Entry, Family, Language, Remedy, Scaled, Settings, Text

__all__ = ["CATALOGUE", "Entry", "Family", "Language", "Remedy", "Scaled", "Settings", "Text", "family_of"]

_FAMILIES = (contrast, policy, numbers, length, setup, ended, outcome)

CATALOGUE: dict[str, Entry] = {entry.code: entry for family in _FAMILIES for entry in family.ENTRIES}
"""Every finding by code."""


def family_of(source: str) -> Family:
    """Whose setting names a reader of a log of format ``source`` knows."""
    if source.startswith(("trl", "ms-swift")):
        return "trl"
    return "verl" if source.startswith("verl") else "recipe"
