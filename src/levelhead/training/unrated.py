"""Answers that reward functions failed on and the recipe drops: reported, and the end of a run without any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from levelhead.records import Event
from levelhead.tasks.metering import RewardTally
from levelhead.training.collected import Collected
from levelhead.training.watcher import Watcher

CODE = "reward-errors"
"""Code of the events about answers that were dropped since their rewards failed."""
MOST_STEPS = 3
"""Steps in a row that may lose every answer of a task; then the run stops."""


@dataclass(slots=True)
class UnratedWatch(Watcher):
    """Looks at what each step's rewards failed on.

    Attributes:
        streaks: By task, steps in a row, of those that sampled it, which lost every answer.
    """

    streaks: dict[str, int] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        """The streaks."""
        return {"streaks": dict(self.streaks)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self.streaks = dict(state["streaks"])

    def sampled(self, step: int, rollouts: Collected) -> list[Event]:
        """Return the events of a step; the last one is a stop where a task has lost all of its answers too often."""
        tallies = rollouts.tallies  # redrawn groups included
        stops = []
        for task, tally in tallies.items():
            if tally.answers:
                self.streaks[task] = self.streaks.get(task, 0) + 1 if tally.dropped == tally.answers else 0
            if self.streaks.get(task, 0) >= MOST_STEPS:
                text = (
                    f"{task}: every answer of {self.streaks[task]} steps in a row was dropped, since its rewards "
                    f"failed; the run was stopped. The last one: {tally.error}"
                )
                stops.append(Event(step, CODE, "critical", text, "stop", _evidence(task, tally)))
        return [*unrated_events(step, tallies), *stops]


def unrated_events(step: int, tallies: Mapping[str, RewardTally], where: str = "") -> list[Event]:
    """Return one event for each task that answers were dropped of: critical where they are more than half.

    Args:
        step: To date them by.
        tallies: By task.
        where: Which answers these are, where they are not a step's (``" of an evaluation"``).
    """
    return [
        Event(
            step,
            CODE,
            "critical" if 2 * tally.dropped > tally.answers else "info",
            f"{task}: {tally.dropped} of {tally.answers} answers{where} were dropped, since the rewards failed "
            f"({_listed(tally)}). The last one: {tally.error}",
            evidence=_evidence(task, tally),
        )
        for task, tally in tallies.items()
        if tally.dropped
    ]


def _listed(tally: RewardTally) -> str:
    return ", ".join(f"{name}: {count}" for name, count in tally.by.most_common())


def _evidence(task: str, tally: RewardTally) -> dict[str, object]:
    return {
        "task": task,
        "answers": tally.answers,
        "dropped": tally.dropped,
        "by": dict(tally.by),
        "cause": "reward-function",
    }
