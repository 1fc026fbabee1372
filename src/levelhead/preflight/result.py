"""What checks found: outcomes with a verdict, a message with its fields, the evidence, and the way out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from levelhead.errors import InputError
from levelhead.preflight.message import Message

if TYPE_CHECKING:
    from levelhead.diagnosis.findings import Language

Status = Literal["pass", "warn", "fail"]
_RANK: Mapping[Status, int] = {"pass": 0, "warn": 1, "fail": 2}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one check found.

    Attributes:
        name: ``family/what``, with the task or stage behind it, as ``rewards/order/math``.
        status: Whether it passed.
        said: The message.
        fields: Values of the message's fields; plain data.
        evidence: The tokens and numbers that it was found in; plain data.
        check: Name of the check, with ``TASK`` or ``STAGE`` in it.
    """

    name: str
    status: Status
    said: Message
    fields: Mapping[str, Any] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    check: str = ""

    @property
    def id(self) -> str:
        """Which message of which check, as ``tokens/vocabulary:too-small``."""
        return f"{self.check or self.name}:{self.said.key}"

    @property
    def message(self) -> str:
        """What was found, in one English line."""
        return self.said.text(self.fields)

    @property
    def fix(self) -> str:
        """What to change, in English; empty where nothing is wrong."""
        return self.said.way_out(self.fields)

    def to_json(self) -> dict[str, Any]:
        """Dict for ``check.json``: name, status, id and fields, English message and fix, evidence."""
        return {
            "name": self.name,
            "status": self.status,
            "id": self.id,
            "fields": dict(self.fields),
            "message": self.message,
            "fix": self.fix,
            "evidence": dict(self.evidence),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All outcomes of a preflight.

    Attributes:
        checks: In the order in which they were made.
        seconds: What they took.
    """

    checks: Sequence[Outcome]
    seconds: float

    @property
    def status(self) -> Status:
        """The worst of all."""
        return max((check.status for check in self.checks), key=_RANK.__getitem__, default="pass")

    @property
    def failures(self) -> list[Outcome]:
        """The outcomes that failed."""
        return [check for check in self.checks if check.status == "fail"]

    def to_json(self) -> list[dict[str, Any]]:
        """The list that ``check.json`` holds."""
        return [check.to_json() for check in self.checks]


class PreflightError(InputError):
    """A check failed before the first step; the run was not started.

    Args:
        report: With at least one failure.
        where: File that holds the whole of it.
        language: Of the message.
    """

    def __init__(self, report: Report, where: str, language: Language = "en") -> None:
        first, more = report.failures[0], len(report.failures) - 1
        what, fix = first.said.text(first.fields, language), first.said.way_out(first.fields, language)
        if language == "zh":
            rest = f"（另有 {more} 项，见 {where}）" if more else f"（证据见 {where}）"
            lines = f"预检：{first.name} 未通过：{what}{rest}", f"{fix}；或加上 --no-check，不作预检直接开始。"
        else:
            rest = f" ({more} more in {where})" if more else f" (evidence in {where})"
            lines = f"preflight: {first.name} failed: {what}{rest}", f"{fix}; or start all the same with --no-check."
        super().__init__("\n".join(lines))
        self.report = report
