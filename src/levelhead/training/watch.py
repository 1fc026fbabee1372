"""The one seam between a stage and all who look on at it: guard, audit, the user's observers, those of batches.

A step shows its watchers, one list of them, the batch, each update before and after it is taken, and its record.  What
they decide is done here: an update is skipped or shortened, weights go back, the run ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from levelhead.message import Message
from levelhead.objective.terms import Term
from levelhead.recipe.training import ByWeight, Grpo, Sft
from levelhead.records import Event, StepRecord
from levelhead.tasks.base import Task
from levelhead.training.collected import Collected
from levelhead.training.fidelity import DeclaredRewards
from levelhead.training.items import HeldOutItems, RepeatedItems
from levelhead.training.step_result import Update
from levelhead.training.trust_region import TrustRegion
from levelhead.training.watcher import Watcher


class AccountedRollouts(Watcher):
    """Reports rollouts that are neither in their group nor left without a score by their task."""

    LOST = Message(
        "of {sampled} rollouts {left_out} are left out of their group, and their tasks gave no score to {unscored}; "
        "rollouts {how}: {count}",
        "{sampled} 条采样中有 {left_out} 条被移出所在的组，任务未给分的有 {unscored} 条；{how}的采样：{count} 条",
    )
    MISSING, TWICE = Message("missing", "缺失"), Message("counted twice", "重复计算")

    def sampled(self, step: int, rollouts: Collected) -> Iterable[Event]:
        """Look at the counts of a batch."""
        lost = rollouts.dropped - rollouts.unscored
        if lost:
            sampled = rollouts.episodes + rollouts.dropped
            counts = {"sampled": sampled, "left_out": rollouts.dropped, "unscored": rollouts.unscored}
            text = self.LOST(**counts, how=(self.MISSING if lost > 0 else self.TWICE)(), count=abs(lost))
            evidence = {"sampled": sampled, "left_out": rollouts.dropped, "lost": lost}
            yield Event(step, "rollouts-missing", "critical", text, "warn", evidence)


class BatchWatch(Watcher):
    """Shows each batch to its watchers, and reports every kind of violation once a stage.

    Args:
        watchers: In the order in which they are asked.
        repeated: One of them, whose state is kept in checkpoints; ``None`` where items may come again.
    """

    def __init__(self, watchers: Sequence[Watcher] = (), repeated: RepeatedItems | None = None) -> None:
        self._watchers, self._repeated = [*watchers, *([repeated] if repeated else [])], repeated
        self._reported: list[str] = []

    @classmethod
    def of(cls, section: Sft | Grpo, tasks: Mapping[str, Task], held_out: HeldOutItems) -> BatchWatch:
        """Return the watch of a stage; with a curriculum items may come again at any time."""
        by_weight = isinstance(section, Sft) or isinstance(section.curriculum, ByWeight)
        return cls([AccountedRollouts(), DeclaredRewards(tasks), held_out], RepeatedItems(tasks) if by_weight else None)

    def sampled(self, step: int, rollouts: Collected) -> list[Event]:
        """Show a batch to all watchers."""
        fresh: dict[str, Event] = {}
        for event in (event for watcher in self._watchers for event in watcher.sampled(step, rollouts)):
            if event.code not in self._reported:
                fresh.setdefault(event.code, event)
        self._reported += fresh
        return [*fresh.values()]

    def state_dict(self) -> dict[str, Any]:
        """Codes that have been reported, and the items of the epoch."""
        items = self._repeated.state_dict() if self._repeated else {}
        return {"reported": [*self._reported], "items": items}

    def load_state_dict(self, state: Mapping[str, Any], *, forget_items: bool = False) -> None:
        """Restore the state that :meth:`state_dict` returned.

        Args:
            state: What was saved.
            forget_items: Whether the data are others now, so that no item is known from before.
        """
        self._reported = [*state["reported"]]
        if self._repeated and (forget_items or state["items"] is None):
            self._watchers.remove(self._repeated)
            self._repeated = None
        elif self._repeated:
            self._repeated.load_state_dict(state["items"])


class Watch:
    """All watchers of the reinforcement stage, and what is done of what they decide.

    Args:
        watchers: In the order in which they are asked.
        region: One of them, which puts weights back; ``None`` without a guard.
    """

    def __init__(self, watchers: Sequence[Watcher], region: TrustRegion | None) -> None:
        self._watchers, self.region = watchers, region

    @property
    def spent(self) -> bool:
        """Whether the guard wants no more updates from this batch."""
        return self.region is not None and self.region.spent

    def begin(self) -> None:
        """Begin a step: coefficients are overridden, and weights noted, as the guard wants it."""
        if self.region:
            self.region.begin()

    def sampled(self, step: int, rollouts: Collected) -> list[Event]:
        """Show what was sampled for a step."""
        return [event for watcher in self._watchers for event in watcher.sampled(step, rollouts)]

    def planned(self, update: Update) -> None:
        """Show an update before its first forward pass."""
        for watcher in self._watchers:
            watcher.planned(update)

    def terms(self, terms: Sequence[Term]) -> None:
        """Show the terms of a micro-batch before their backward pass."""
        for watcher in self._watchers:
            watcher.terms(terms)

    def before(self, update: Update) -> bool:
        """Show the gradient of an update; returns whether it is to be taken."""
        for watcher in self._watchers:
            for decision in watcher.before(update):
                update.events.append(decision.event)
                update.skipped |= decision.kind == "skip"
                update.stop |= decision.kind == "stop"
        return not update.skipped

    def after(self, update: Update) -> None:
        """Show an update that has been taken; as much of it is put back as the guard asks for."""
        for watcher in self._watchers:
            update.events += watcher.after(update)

    def recorded(self, record: StepRecord, sampler_weights: Sequence[Tensor] | None) -> tuple[list[Event], bool, bool]:
        """Show the record of a step, and go back to the kept weights where a watcher asks for it.

        Args:
            record: Of the step.
            sampler_weights: That sampled its batch, where the step did not start from them.

        Returns:
            Events, whether the run is to end, and whether the weights are those of before.
        """
        decisions = [decision for watcher in self._watchers for decision in watcher.recorded(record)]
        went_back = self.region is not None and any(decision.kind == "rollback" for decision in decisions)
        if self.region is not None:
            if went_back:
                self.region.restore()
            self.region.keep(sampler_weights)
        for watcher in self._watchers:
            watcher.ended()
        stop = any(decision.kind == "stop" for decision in decisions)
        return [decision.event for decision in decisions], stop, went_back

    def recall(self, records: Iterable[StepRecord]) -> None:
        """Show a guard what it had seen before the run was interrupted."""
        if self.region:
            for record in records:
                self.region.guard.recall(record)
