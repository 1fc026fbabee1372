"""Who caught a fault: what was said beyond what the sound run of the same settings is told, and whether it names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LAST_STEP = 20
"""Events up to this step count."""
CHANGED = 1e-4
"""Relative distance of the weights from which a run has changed; rounding is at 1e-7."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who said what of a fault.

    Attributes:
        failed: Checks of the preflight that keep the run from starting.
        warned: Checks that only warn.
        events: Code and step of what guard and run said, the first of each code.
        ended: What ended the run before its time.
        doctor: The doctor's leading finding.
        naming: Who named the cause, of the above.
        changed: Whether the run is another one than the sound run.
        error: Why there is no verdict.
    """

    failed: Sequence[str] = ()
    warned: Sequence[str] = ()
    events: Mapping[str, int] = field(default_factory=dict)
    ended: str | None = None
    doctor: str | None = None
    naming: Sequence[str] = ()
    changed: bool = False
    error: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether the run would not have started."""
        return bool(self.failed)

    @property
    def live(self) -> bool:
        """Whether guard or run saw it while training."""
        return bool(self.events or self.ended)

    @property
    def reached(self) -> bool:
        """What is aimed at: stopped before the first step, or named while training."""
        return self.stopped or any(who.startswith("guard") for who in self.naming)

    @property
    def caught(self) -> str:
        """Who was first: ``stopped``, ``warned``, ``guard``, ``doctor`` or ``nobody``."""
        for who, codes in (("stopped", self.failed), ("warned", self.warned), ("guard", self.live)):
            if codes:
                return who
        return "doctor" if self.doctor else "nobody"


def judge(fault: Any, row: Mapping[str, Any], sound: Mapping[str, Any]) -> Verdict:
    """Return who caught a fault.

    Args:
        fault: With ``names``, which says whether a message names its cause.
        row: Of the run with the fault.
        sound: Of the run without it, at the same settings.
    """
    if error := row.get("error") or sound.get("error"):
        return Verdict(error=str(error))
    usual = {(check["name"], check["status"]) for check in sound["check"]}
    seen_in_sound = {event["code"] for event in sound["events"]}
    checks = [check for check in row["check"] if (check["name"], check["status"]) not in usual]
    events = [e for e in row["events"] if e["code"] not in seen_in_sound and e["step"] <= LAST_STEP]
    first: dict[str, int] = {}
    for event in events:
        first.setdefault(event["code"], event["step"])
    ended = row["stopped"] if row["stopped"] and not sound["stopped"] else None
    doctor = row["doctor"]
    if doctor is not None and sound["doctor"] is not None and doctor["code"] == sound["doctor"]["code"]:
        doctor = None
    told = [("check " + c["name"], f"{c['name']} {c['text']}") for c in checks]
    told += [("guard " + e["code"], f"{e['code']} {e['text']}") for e in events]
    told += [("guard ended", ended)] if ended else []
    told += [("doctor " + doctor["code"], f"{doctor['code']} {doctor['text']}")] if doctor else []
    apart = row.get("difference", {})
    return Verdict(
        failed=[c["name"] for c in checks if c["status"] == "fail"],
        warned=[c["name"] for c in checks if c["status"] == "warn"],
        events=first,
        ended=ended,
        doctor=doctor["code"] if doctor else None,
        naming=list(dict.fromkeys(who for who, text in told if fault.names(text))),
        changed=bool(apart and (apart["weights"] > CHANGED or apart["metrics"] or apart["best"])) or bool(ended),
    )
