"""What a proof found: a name, a verdict, and the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["pass", "warn", "fail"]
_RANK: Mapping[Status, int] = {"pass": 0, "warn": 1, "fail": 2}


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one check.

    Attributes:
        name: ``family/what``, as ``loss/completion-only``.
        status: Whether it passed.
        message: What was found, in one line.
        evidence: The tokens and numbers that it was found in; plain data.
        fix: What to change; empty where nothing is wrong.
    """

    name: str
    status: Status
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        """Dict for ``check.json``."""
        return {
            "name": self.name,
            "status": self.status,
            "message": self.message,
            "evidence": dict(self.evidence),
            "fix": self.fix,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of a preflight.

    Attributes:
        checks: In the order in which they were made.
        seconds: What they took.
    """

    checks: Sequence[Check]
    seconds: float

    @property
    def status(self) -> Status:
        """The worst of all."""
        return max((check.status for check in self.checks), key=_RANK.__getitem__, default="pass")

    @property
    def failures(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.status == "fail"]

    def to_json(self) -> list[dict[str, Any]]:
        """The list that ``check.json`` holds."""
        return [check.to_json() for check in self.checks]


def judged(
    name: str, wrong: str | None, right: str, evidence: Mapping[str, Any], fix: str = "", *, severity: Status = "fail"
) -> Check:
    """Return a failure (or ``severity``) where ``wrong`` says something, else a pass.

    Args:
        name: Of the check.
        wrong: What is wrong, or ``None``.
        right: What to say where nothing is.
        evidence: Shown either way.
        fix: Shown where something is wrong.
        severity: How bad it is.
    """
    if wrong is None:
        return Check(name, "pass", right, evidence)
    return Check(name, severity, wrong, evidence, fix)
