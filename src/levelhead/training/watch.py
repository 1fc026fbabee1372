"""The one seam between a stage and all who look on at it: guard, the user's observers, and those of the trainer itself.

A step shows them its batch, each update before it is taken, and its record afterwards.  What they decide is done here:
an update is skipped or shortened, weights go back, the run ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from levelhead.policy.policy import Policy
from levelhead.recipe.curriculum import ByWeight
from levelhead.recipe.training import Grpo, Sft
from levelhead.records import CoefficientOverrides, Event, Observer, StepRecord
from levelhead.tasks.base import Task
from levelhead.training.coefficients import Coefficients
from levelhead.training.collected import Collected
from levelhead.training.fidelity import DeclaredRewards, HeldWeights, moved_event
from levelhead.training.items import HeldOutItems, RepeatedItems
from levelhead.training.optim import Updater
from levelhead.training.plan import Plan
from levelhead.training.ranks import Ranks
from levelhead.training.step_result import UpdateResult
from levelhead.training.trust_region import TrustRegion, find_guard


class BatchObserver(Protocol):
    """Is shown what was sampled for a step, before anything is learnt from it."""

    def sampled(self, step: int, rollouts: Collected) -> Iterable[Event]:
        """Return what there is to report of a batch."""
        ...


class AccountedRollouts:
    """Reports rollouts that are neither in their group nor left without a score by their task."""

    def sampled(self, step: int, rollouts: Collected) -> Iterable[Event]:
        """Look at the counts of a batch."""
        lost = rollouts.dropped - rollouts.unscored
        if lost:
            sampled = rollouts.episodes + rollouts.dropped
            text = (
                f"of {sampled} rollouts {rollouts.dropped} are left out of their group, and their tasks gave no score "
                f"to {rollouts.unscored}; rollouts {'missing' if lost > 0 else 'counted twice'}: {abs(lost)}"
            )
            evidence = {"sampled": sampled, "left_out": rollouts.dropped, "lost": lost}
            yield Event(step, "rollouts-missing", "critical", text, "warn", evidence)


class BatchWatch:
    """Shows each batch to its observers, and reports every kind of violation once a stage.

    Args:
        observers: In the order in which they are asked.
        repeated: One of them, whose state is kept in checkpoints; ``None`` where items may come again.
    """

    def __init__(self, observers: Sequence[BatchObserver] = (), repeated: RepeatedItems | None = None) -> None:
        self._observers, self._repeated = [*observers, *([repeated] if repeated else [])], repeated
        self._reported: list[str] = []

    @classmethod
    def of(cls, section: Sft | Grpo, tasks: Mapping[str, Task], held_out: HeldOutItems) -> BatchWatch:
        """Return the watch of a stage; with a curriculum items may come again at any time."""
        by_weight = isinstance(section, Sft) or isinstance(section.curriculum, ByWeight)
        return cls([AccountedRollouts(), DeclaredRewards(tasks), held_out], RepeatedItems(tasks) if by_weight else None)

    def sampled(self, step: int, rollouts: Collected) -> list[Event]:
        """Show a batch to all observers."""
        fresh: dict[str, Event] = {}
        for event in (event for observer in self._observers for event in observer.sampled(step, rollouts)):
            if event.code not in self._reported:
                fresh.setdefault(event.code, event)
        self._reported += fresh
        return [*fresh.values()]

    def state_dict(self) -> dict[str, Any]:
        """Codes that have been reported, and the items of the epoch."""
        items = self._repeated.state_dict() if self._repeated else {}
        return {"reported": [*self._reported], "items": items}

    def load_state_dict(self, state: Mapping[str, Any], *, forget_items: bool = False) -> None:
        """Restore :meth:`state_dict`.

        Args:
            state: What was saved.
            forget_items: Whether the data are others now, so that no item is known from before.
        """
        self._reported = [*state["reported"]]
        if self._repeated and (forget_items or state["items"] is None):
            self._observers.remove(self._repeated)
            self._repeated = None
        elif self._repeated:
            self._repeated.load_state_dict(state["items"])


class Watch:
    """Observers of the reinforcement stage, and what is done of what they decide.

    Args:
        policy: What is trained.
        updater: Its optimizer.
        coefficients: Those that a guard may override.
        observers: Shown every record; a guard is one.
        batches: Looks at what was sampled.
        tokens: Budget of a forward pass.
        ranks: The processes that share the work.
    """

    def __init__(
        self,
        policy: Policy,
        updater: Updater,
        coefficients: Coefficients,
        observers: Sequence[Observer],
        batches: Collection[BatchObserver],
        tokens: int,
        ranks: Ranks,
    ) -> None:
        self._updater, self._observers, self._batches = updater, observers, batches
        guard = find_guard(observers)
        self.trust_region = TrustRegion(policy, updater, coefficients, guard, tokens, ranks) if guard else None
        self._held = HeldWeights(policy)

    @property
    def overrides(self) -> CoefficientOverrides:
        """Coefficients as the guard wants them."""
        return self.trust_region.guard.overrides if self.trust_region else CoefficientOverrides()

    @property
    def keeps_weights(self) -> bool:
        """Whether the weights that sampled a batch may have to be gone back to."""
        return self.trust_region is not None and self.trust_region.guard.corrects

    @property
    def spent(self) -> bool:
        """Whether the guard wants no more updates from this batch."""
        return self.trust_region is not None and self.trust_region.spent

    def begin(self) -> None:
        """Begin a step: coefficients are overridden, and weights noted, as the guard wants it."""
        if self.trust_region:
            self.trust_region.begin()

    def sampled(self, step: int, rollouts: Collected) -> list[Event]:
        """Show what was sampled for a step."""
        return [event for observer in self._batches for event in observer.sampled(step, rollouts)]

    def before(self, step: int, update: UpdateResult) -> bool:
        """Show the gradient's numbers of an update; returns whether it is to be taken."""
        for observer in self._observers:
            for decision in observer.before_update(StepRecord(step, "grpo", update.values)):
                update.events.append(decision.event)
                update.skipped |= decision.kind == "skip"
                update.stop |= decision.kind == "stop"
        if update.skipped:
            self._updater.clear()
        return not update.skipped

    def take(self, step: int, plan: Plan, update: UpdateResult, *, later: bool) -> None:
        """Take the optimizer's step, as far as the guard lets it stand; ``later``: not the first one of its batch."""
        if not later and (names := self._held.moved()):
            update.events.append(moved_event(step, names))
        if self.trust_region is None:
            self._updater.step()
        else:
            update.events += self.trust_region.step(step, plan, later=later)
            update.values |= self.trust_region.values
        update.values |= self._updater.visible

    def after(self, record: StepRecord) -> tuple[list[Event], bool, bool]:
        """Show the record of a step, and go back to the kept weights where an observer asks for it.

        Returns:
            Events, whether the run is to end, and whether the weights are those of before.
        """
        events: list[Event] = []
        stop = went_back = False
        for observer in self._observers:
            for decision in observer.after_update(record):
                events.append(decision.event)
                stop |= decision.kind == "stop"
                if decision.kind == "rollback" and self.trust_region:
                    self.trust_region.restore()
                    went_back = True
        return events, stop, went_back

    def keep(self, sampler_weights: Sequence[Tensor] | None) -> None:
        """End a step: remember its weights, and those that sampled the batch, if the guard thinks them worth it."""
        self._held.note()
        if self.trust_region:
            self.trust_region.keep(sampler_weights)

    def recall(self, records: Iterable[StepRecord]) -> None:
        """Show a guard what it had seen before the run was interrupted."""
        if self.trust_region:
            for record in records:
                self.trust_region.guard.recall(record)
