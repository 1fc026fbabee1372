"""What a trainer does: steps, their updates, and what these leave behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Protocol

from levelhead import metrics as metric
from levelhead.records import Event, Group, Prompt, StepRecord
from levelhead.training.collected import Collected
from levelhead.training.optim import Updater
from levelhead.training.plan import Plan
from levelhead.training.stateful import Stateful

NON_METRIC_KEYS = ("step", "stage")
"""Keys of a line of ``metrics.jsonl`` that are no metrics."""


@dataclass(slots=True)
class StepResult:
    """What one step leaves behind.

    Attributes:
        record: Its metrics and timings.
        groups: The rollouts; none of a supervised step.
        advantages: Advantage of each rollout of each group.
        events: What was seen or done.
        stop: Whether the run is to end here.
    """

    record: StepRecord
    groups: Sequence[Group] = ()
    advantages: Sequence[Sequence[float]] = ()
    events: list[Event] = field(default_factory=list)
    stop: bool = False

    @property
    def news(self) -> list[Event]:
        """The events but those that end the run."""
        return [event for event in self.events if event not in self.ends]

    @property
    def ends(self) -> list[Event]:
        """The events that end the run; they are to be the last of it."""
        return [event for event in self.events if event.action == "stop"] if self.stop else []


class Trainer(Stateful, Protocol):
    """Does the steps of a stage; its state is that which a checkpoint holds besides weights, optimizer and prompts."""

    updater: Updater

    @property
    def position(self) -> Stateful:
        """The position in the prompts, for a checkpoint."""
        ...

    def step(self, step: int) -> StepResult:
        """Do a step, counted from 1."""
        ...

    def upcoming(self) -> list[Prompt]:
        """The prompts of the next step."""
        ...

    def begins(self, step: int) -> dict[str, Any]:
        """What a step begins with besides weights, optimizer and prompts, as JSON, to tell whether a run goes on."""
        ...


@dataclass(slots=True)
class Update:
    """One optimizer step: what it is made of, and what it leaves behind.

    Attributes:
        step: Step of the run.
        plan: Its samples, and what their terms are divided by.
        seed: Seed of losses that draw.
        later: Whether its batch has seen an update before.
        values: Its metrics.
        events: What was seen or done.
        skipped: Whether the weights stayed as they were.
        stop: Whether a watcher asks to end the run.
    """

    step: int
    plan: Plan
    seed: int
    later: bool
    values: dict[str, float]
    events: list[Event] = field(default_factory=list)
    skipped: bool = False
    stop: bool = False


def over_updates(updates: Sequence[Update]) -> dict[str, float]:
    """Mean of each metric over the updates that have it; the largest of a ``/max``, the smallest of a ``/min``."""
    rows: list[Mapping[str, float]] = [update.values for update in updates]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row[name] for row in rows if name in row] for name in names}
    ends = {name: max if name.endswith("/max") else min if name.endswith("/min") else fmean for name in names}
    return {name: ends[name](column) for name, column in columns.items()}


def step_timings(rollouts: Collected, waited: float, total: float, *, ahead: bool) -> dict[str, float]:
    """Seconds of a step by what they were spent on.

    Args:
        rollouts: The batch.
        waited: Seconds until the batch was there.
        total: Seconds of the whole step.
        ahead: Whether rollouts are sampled ahead.
    """
    parts = {
        metric.TIME_SAMPLE: rollouts.sample_s,
        metric.TIME_SCORE: rollouts.score_s,
        metric.TIME_ENV: rollouts.env_s,
    }
    timings = {part: seconds for part, seconds in parts.items() if seconds}
    timings |= rollouts.timings | ({metric.TIME_WAIT: waited} if ahead else {})
    return {**timings, metric.TIME_TRAIN: total - waited, metric.STEP_TIME: total}
