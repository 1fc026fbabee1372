"""What a broken identity is called, and how it becomes an event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from levelhead.records import ActionKind, Event, Severity


@dataclass(frozen=True, slots=True)
class Violation:
    """An exact statement about a run that does not hold.

    Attributes:
        code: Of the event.
        text: What was expected and what was seen, with the numbers, in one sentence.
        evidence: These numbers.
        severity: ``info`` where nothing is broken but the check itself.
    """

    code: str
    text: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    severity: Severity = "critical"

    def event(self, step: int) -> Event:
        """The event that tells of it."""
        action: ActionKind | None = None if self.severity == "info" else "warn"
        return Event(step, self.code, self.severity, self.text, action, self.evidence)


def close(seen: float, wanted: float, relative: float, absolute: float = 0.0) -> bool:
    """Whether two numbers agree; a number that is not finite agrees with none."""
    return abs(seen - wanted) <= max(relative * abs(wanted), absolute)


def some(names: list[str], most: int = 3) -> str:
    """A few names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
