"""Answers that reward functions failed on and the recipe drops: reported, and the end of a run without any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from levelhead.message import Message
from levelhead.records import Event
from levelhead.tasks.metering import RewardTally
from levelhead.training.collected import Collected
from levelhead.training.watcher import Watcher

CODE = "reward-errors"
"""Code of the events about answers that were dropped since their rewards failed."""
MOST_STEPS = 3
"""Steps in a row that may lose every answer of a task; then the run stops."""

EVERY = Message(
    "{task}: every answer of {steps} steps in a row was dropped, since its rewards failed; the run was stopped. "
    "The last one: {error}",
    "{task}：连续 {steps} 步的全部回答都因奖励出错被丢弃，训练已停止。最后一个错误：{error}",
)
SOME = Message(
    "{task}: {dropped} of {answers} answers were dropped, since the rewards failed ({by}). The last one: {error}",
    "{task}：因奖励出错丢弃了 {dropped} 个回答（共 {answers} 个；{by}）。最后一个错误：{error}",
)
SOME_EVALUATED = Message(
    "{task}: {dropped} of {answers} answers of an evaluation were dropped, since the rewards failed ({by}). "
    "The last one: {error}",
    "{task}：评测时因奖励出错丢弃了 {dropped} 个回答（共 {answers} 个；{by}）。最后一个错误：{error}",
)


@dataclass(slots=True)
class UnratedWatch(Watcher):
    """Looks at what each step's rewards failed on.

    Attributes:
        streaks: By task, steps in a row, of those that sampled it, which lost every answer.
    """

    streaks: dict[str, int] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        """The streaks, so that a resumed run goes on counting."""
        return {"streaks": dict(self.streaks)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self.streaks = dict(state["streaks"])

    def sampled(self, step: int, rollouts: Collected) -> list[Event]:
        """Return the events of a step; the last one is a stop where a task has lost all of its answers too often."""
        tallies = rollouts.tallies  # redrawn groups included
        stops = []
        for task, tally in tallies.items():
            if tally.answers:
                self.streaks[task] = self.streaks.get(task, 0) + 1 if tally.dropped == tally.answers else 0
            if self.streaks.get(task, 0) >= MOST_STEPS:
                text = EVERY(task=task, steps=self.streaks[task], error=tally.error)
                stops.append(Event(step, CODE, "critical", text, "stop", _evidence(task, tally)))
        return [*unrated_events(step, tallies), *stops]


def unrated_events(step: int, tallies: Mapping[str, RewardTally], text: Message = SOME) -> list[Event]:
    """Return one event for each task that answers were dropped of: critical where they are more than half.

    Args:
        step: To date them by.
        tallies: By task.
        text: What is said: :data:`SOME` of a step's answers, :data:`SOME_EVALUATED` of an evaluation's.
    """
    return [
        Event(
            step,
            CODE,
            "critical" if 2 * tally.dropped > tally.answers else "info",
            text(task=task, dropped=tally.dropped, answers=tally.answers, by=_listed(tally), error=tally.error),
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
