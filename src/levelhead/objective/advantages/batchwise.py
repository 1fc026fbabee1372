"""Estimators that take a mean or a standard deviation over the whole batch.

Statistics count every rollout once, or every token once where ``lengths_gk`` is given (a rollout then counts as often
as it has tokens).  A group without contrast gets 0 from every estimator with a group baseline: a batch mean that
token weights move away from 0 is used for the standard deviation and never subtracted.
"""

from __future__ import annotations

from collections.abc import Collection
from types import ModuleType
from typing import Literal, Self

from levelhead.objective.advantages.base import (
    Advantages,
    Array,
    batch_moments,
    centre,
    check_lengths,
    check_like,
    check_rewards,
    divide,
    standardise,
)
from levelhead.objective.advantages.estimator import RewardBatch, Standardised


class Batch(Standardised):
    """Group mean, batch deviation: ``(r - mean_group) / (std_batch + eps)`` (Liu et al. 2025, arXiv:2508.08221).

    The standard deviation is that of all rewards of the batch, as they are, not of the centred ones.
    """

    name = "batch"

    def estimate(self, batch: RewardBatch) -> Advantages:
        """Return centred rewards over the deviation of all."""
        xp, rewards_gk = check_rewards(batch.rewards_gk)
        centred_gk, has_signal_g = centre(xp, rewards_gk)
        _, std = batch_moments(xp, rewards_gk, ddof=self.ddof, weights_gk=None)
        return Advantages(divide(xp, centred_gk, std, self.eps), has_signal_g)


class Batchwise(Standardised):
    """An estimator whose batch statistics count rollouts, or tokens where lengths are given."""

    takes = frozenset({"lengths_gk"})
    statistics: Literal["rollouts", "tokens"] = "rollouts"
    """Batch statistics over rollouts, or over tokens (verl)."""

    @property
    def arrays(self) -> frozenset[str]:
        """What it needs, and lengths where tokens are counted."""
        return self.needs | ({"lengths_gk"} if self.statistics == "tokens" else frozenset())


class ReinforcePp(Batchwise):
    """Rewards whitened over the batch, ``(r - mean_batch) / (std_batch + eps)`` (Hu et al. 2025, arXiv:2501.03262).

    There is no group baseline: a group of equal rewards is live as long as it differs from the batch mean.
    """

    name = "reinforce_pp"

    def estimate(self, batch: RewardBatch) -> Advantages:
        """Return whitened rewards; mean and deviation are over tokens where lengths are given."""
        xp, rewards_gk = check_rewards(batch.rewards_gk)
        weights_gk = None if batch.lengths_gk is None else check_lengths(batch.lengths_gk, rewards_gk)
        centred_gk, std = batch_moments(xp, rewards_gk, ddof=self.ddof, weights_gk=weights_gk)
        values_gk = divide(xp, centred_gk, std, self.eps)
        return Advantages(values_gk, xp.any(values_gk != 0, axis=1))


class ReinforcePpBaseline(Batchwise):
    """Group mean, then the batch deviation of the centred rewards (Hu et al. 2025, arXiv:2501.03262).

    Unlike :class:`Batch`, the deviation leaves out how much groups differ from one another.
    """

    name = "reinforce_pp_baseline"

    def estimate(self, batch: RewardBatch) -> Advantages:
        """Return centred rewards over their deviation, which is over tokens where lengths are given."""
        xp, rewards_gk = check_rewards(batch.rewards_gk)
        weights_gk = None if batch.lengths_gk is None else check_lengths(batch.lengths_gk, rewards_gk)
        centred_gk, has_signal_g = centre(xp, rewards_gk)
        _, std = batch_moments(xp, centred_gk, ddof=self.ddof, weights_gk=weights_gk)
        return Advantages(divide(xp, centred_gk, std, self.eps), has_signal_g)


class Gdpo(Batchwise):
    """Each named reward standardised in its group, then weighted, summed, divided by the batch deviation (GDPO).

    ``A = sum_n w_n (r_n - mean_n) / (std_n + eps)`` within a group, then ``A / (std_batch(A) + eps)``
    (Liu et al. 2026, arXiv:2601.05242).  Rewards of different scale or rarity keep their own resolution.  The total
    rewards give the shape and nothing else; where a part does not apply, it adds 0, and its mean and deviation are
    over the others.
    """

    name = "gdpo"
    needs = frozenset({"parts"})
    takes = frozenset({"applies", "lengths_gk"})
    divides_by_std = True
    reads_total = False
    weights: dict[str, float] | None = None
    """Weight of each named reward; 1 where none is named."""
    batch_norm: bool = True
    """Whether to divide by the batch deviation."""

    def for_parts(self, names: Collection[str]) -> Self:
        """Return the estimator with the weights of these rewards alone."""
        if self.weights is None:
            return self
        return self.model_copy(update={"weights": {name: w for name, w in self.weights.items() if name in names}})

    def estimate(self, batch: RewardBatch) -> Advantages:
        """Return the weighted sum of the standardised parts, over its batch deviation."""
        xp, rewards_gk = check_rewards(batch.rewards_gk)
        weights, parts, applies = self.weights or {}, batch.parts or {}, batch.applies or {}
        if not parts:
            raise ValueError("gdpo needs at least one named reward in parts")
        if unknown := sorted(weights.keys() - parts.keys()):
            names = ", ".join(parts)
            raise ValueError(f"gdpo has a weight for {unknown[0]!r}, which is no named reward; known: {names}")
        total_gk = xp.zeros_like(rewards_gk)
        size_gk = xp.zeros_like(rewards_gk)
        for name, part_gk in parts.items():
            part_gk = check_like(f"parts[{name!r}]", part_gk, rewards_gk)
            if name in applies:
                mask_gk = check_like(f"applies[{name!r}]", applies[name], rewards_gk) != 0
                values_gk = _standardise_where(xp, part_gk, mask_gk, ddof=self.ddof, eps=self.eps)
            else:
                values_gk, _ = standardise(xp, part_gk, ddof=self.ddof, eps=self.eps)
            total_gk = total_gk + weights.get(name, 1.0) * values_gk
            size_gk = size_gk + abs(weights.get(name, 1.0)) * xp.abs(values_gk)
        # Parts that cancel leave rounding errors behind, which a small batch deviation would blow up to full size.
        range_g = xp.max(total_gk, axis=1) - xp.min(total_gk, axis=1)
        has_signal_g = range_g > 32 * xp.finfo(rewards_gk.dtype).eps * xp.max(size_gk, axis=1)
        total_gk = xp.where(has_signal_g[:, None], total_gk, xp.zeros_like(total_gk))
        if self.batch_norm:
            weights_gk = None if batch.lengths_gk is None else check_lengths(batch.lengths_gk, rewards_gk)
            _, std = batch_moments(xp, total_gk, ddof=self.ddof, weights_gk=weights_gk)
            total_gk = divide(xp, total_gk, std, self.eps)
        return Advantages(total_gk, has_signal_g)


def _standardise_where(xp: ModuleType, part_gk: Array, mask_gk: Array, *, ddof: int, eps: float) -> Array:
    """:func:`standardise` of the entries that count; others, and those with no deviation to divide by, are 0."""
    values_gk = xp.zeros_like(part_gk)
    for g in range(part_gk.shape[0]):
        own = part_gk[g, :][mask_gk[g, :]]
        if own.shape[0] > max(ddof, 1):
            standard, _ = standardise(xp, own[None, :], ddof=ddof, eps=eps)
            values_gk[g, mask_gk[g, :]] = standard[0, :]
    return values_gk
