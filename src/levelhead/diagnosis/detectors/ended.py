"""How a run ended, by its own events: what an error or a guard has stopped is not healthy, whatever its rows say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from levelhead.diagnosis.detectors.base import Candidate, Tuned, View
from levelhead.diagnosis.findings import CATALOGUE
from levelhead.diagnosis.history import History
from levelhead.diagnosis.notice import printable

REWARDS = "rewards-stopped"
ERROR = "run-stopped"
_ENDPOINT = ("EndpointError", "BudgetError")
_MOST_CHARACTERS = 240


class Ended(Tuned):
    """The last event is a stop: by the rewards, by another error, or by the guard."""

    codes = (REWARDS, ERROR)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Look at the last event."""
        last = last_stop(view.events, view.history)
        if last is None:
            return
        step, code = float(last.get("step") or 0), str(last.get("code"))
        words = printable(last.get("message", ""), _MOST_CHARACTERS)
        if code == "rewards":
            case = Candidate(REWARDS, first_step=step, severity="critical")
            key = "ended-by-endpoint" if _is_endpoint(last) else "ended-by-rewards"
            yield case.add(self.ENDED_BY_REWARDS_WEIGHT, key, step=step, message=words)
        elif code in CATALOGUE:
            # The detectors may have more to say of it; that it is there, the guard was sure enough to act upon.
            case = Candidate(code, first_step=step, severity="critical")
            yield case.add(self.ENDED_BY_GUARD_WEIGHT, "ended-by-guard", step=step, message=words)
        else:
            case = Candidate(ERROR, first_step=step, severity="critical")
            yield case.add(self.ENDED_BY_ERROR_WEIGHT, "ended-by-error", step=step, message=words)


def last_stop(events: Sequence[Mapping[str, Any]], history: History) -> Mapping[str, Any] | None:
    """Return the event that ended a run; ``None`` for a run that came to its end, was interrupted or went on.

    Args:
        events: Of the run, in order.
        history: Of the same run: rows after the stop show that it was resumed.
    """
    last = events[-1] if events else {}
    if last.get("action") != "stop" or last.get("severity") != "critical":
        return None
    step = last.get("step")
    # An event of step 0 is one of a stage that had not begun; the rows are then those of the stage before.
    went_on = isinstance(step, int | float) and step > 0 and history.last_step > step + 1
    return None if went_on else last


def _is_endpoint(event: Mapping[str, Any]) -> bool:
    evidence = event.get("evidence")
    return isinstance(evidence, Mapping) and evidence.get("error") in _ENDPOINT
