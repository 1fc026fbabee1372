"""What looks on at a stage: a watcher sees batches, updates and records, and says what is to be done about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from levelhead.objective.terms import Term
from levelhead.records import Decision, Event, Observer, StepRecord
from levelhead.training.collected import Collected
from levelhead.training.step_result import Update


class Watcher:
    """Looks on at a stage; each kind overrides the methods at which it has something to see or to say."""

    def sampled(self, step: int, rollouts: Collected) -> Iterable[Event]:  # noqa: ARG002
        """Return what there is to report of the batch of a step, before anything is learnt from it."""
        return ()

    def planned(self, update: Update) -> None:
        """Look at an update before its first forward pass."""

    def terms(self, terms: Sequence[Term]) -> None:
        """Look at the terms of a micro-batch before their backward pass."""

    def before(self, update: Update) -> Iterable[Decision]:  # noqa: ARG002
        """Decide on an update whose gradient, merged and clipped, is in the parameters."""
        return ()

    def after(self, update: Update) -> Iterable[Event]:  # noqa: ARG002
        """Look at the weights after an update; returns what was done about them."""
        return ()

    def recorded(self, record: StepRecord) -> Iterable[Decision]:  # noqa: ARG002
        """Decide on a step by its complete record."""
        return ()

    def ended(self) -> None:
        """Look at the weights as the next step is to find them."""


class ObserverWatcher(Watcher):
    """Shows records to an observer, which touches nothing: the user's own, or a guard.

    Args:
        observer: The observer.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def before(self, update: Update) -> Iterable[Decision]:
        """Show the numbers of the gradient before it is stepped by; what the observer decides, the step does."""
        return self._observer.before_update(StepRecord(update.step, "grpo", update.values))

    def recorded(self, record: StepRecord) -> Iterable[Decision]:
        """Show the finished record of the step; what the observer decides holds from the next step on."""
        return self._observer.after_update(record)
