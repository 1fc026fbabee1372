"""What every reward shaper is: its settings, what it needs, and its formula, in one class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from levelhead.objective.advantages.base import Array, check_lengths
from levelhead.objective.advantages.estimator import RewardBatch
from levelhead.section import Section

NEEDS = frozenset({"lengths_gk", "parts"})
"""Fields of a reward batch that a shaper may ask for, besides the rewards."""


class Shaper(Section):
    """A step of reward shaping: its fields are its settings, :meth:`shape` is its formula.

    A subclass is a whole shaper; the docstring of a field is the documentation of its key
    ``tasks[].shaping.length.<field>``.  Formulas are written against the array API, for numpy arrays and torch tensors
    alike.
    """

    name: ClassVar[str] = ""
    """Its ``tasks[].shaping.length.kind``; a class of your own needs none."""
    needs: ClassVar[frozenset[str]] = frozenset()
    """Fields of :class:`RewardBatch`, besides the rewards, that it cannot do without: ``lengths_gk``, ``parts``."""

    def with_budget(self, tokens: int) -> Self:  # noqa: ARG002
        """Return the shaper for completions of at most ``tokens`` tokens; itself where that changes nothing.

        Raises:
            ValueError: A setting does not fit this budget.
        """
        return self

    def begin(self) -> Mapping[str, Any]:
        """Return the state before the first batch: plain JSON values, saved with checkpoints; empty for none."""
        return {}

    def shape(self, batch: RewardBatch, state: Mapping[str, Any]) -> tuple[Array, Mapping[str, Any]]:
        """Return the shaped rewards, shape (groups, K), and the state after this batch.

        Args:
            batch: Rewards of one task, and what :attr:`needs` asks for.
            state: That of the batch before, or of :meth:`begin`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method shape(self, batch, state)")


class LengthPenalty(Shaper):
    """A shaper that adds something to each reward by the lengths of completions; a subclass gives :meth:`addition`."""

    needs = frozenset({"lengths_gk"})

    def addition(self, rewards_gk: Array, lengths_gk: Array) -> Array:
        """Return what is added to each reward, shape (groups, K).

        Args:
            rewards_gk: Rewards, shape (groups, K).
            lengths_gk: Completion tokens, shape (groups, K).
        """
        raise NotImplementedError(f"{type(self).__name__} has no method addition(self, rewards_gk, lengths_gk)")

    def shape(self, batch: RewardBatch, state: Mapping[str, Any]) -> tuple[Array, Mapping[str, Any]]:
        """Return the rewards with the addition."""
        lengths_gk = check_lengths(batch.lengths_gk, batch.rewards_gk)
        return batch.rewards_gk + self.addition(batch.rewards_gk, lengths_gk), state
