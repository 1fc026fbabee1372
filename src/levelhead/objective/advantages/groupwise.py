"""Estimators that compare a rollout with its own group and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pydantic import Field

from levelhead.objective.advantages.base import (
    Advantages,
    centre,
    check_lengths,
    check_like,
    check_rewards,
    contrast,
    standardise,
)
from levelhead.objective.advantages.estimator import Estimator, RewardBatch, Standardised

STRUCTURE_WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "diversity": 0.35,
        "improvement": 0.25,
        "execution_success": 0.20,
        "efficiency": 0.10,
        "operator_variety": 0.10,
    }
)
"""Weights of the structural features of :class:`WorkflowAware`."""


class Grpo(Standardised):
    """Group-relative advantage, ``(r - mean) / (std + eps)`` (Shao et al. 2024, arXiv:2402.03300, section 4.1.2)."""

    name = "grpo"
    divides_by_std = True

    def estimate(self, batch: RewardBatch) -> Advantages:
        """Return the standardised rewards of each group."""
        xp, rewards_gk = check_rewards(batch.rewards_gk)
        return Advantages(*standardise(xp, rewards_gk, ddof=self.ddof, eps=self.eps))


class DrGrpo(Estimator):
    """Centred reward without the division, ``r - mean`` (Liu et al. 2025, Dr. GRPO, arXiv:2503.20783)."""

    name = "dr_grpo"

    def estimate(self, batch: RewardBatch) -> Advantages:
        """Return the centred rewards of each group."""
        xp, rewards_gk = check_rewards(batch.rewards_gk)
        return Advantages(*centre(xp, rewards_gk))


class Rloo(Estimator):
    """Reward minus the mean of the group's other rewards (Kool et al. 2019; Ahmadian et al. 2024, arXiv:2402.14740).

    Equal to ``K / (K - 1)`` times :class:`DrGrpo`.
    """

    name = "rloo"

    def estimate(self, batch: RewardBatch) -> Advantages:
        """Return each reward less the mean of the others."""
        xp, rewards_gk = check_rewards(batch.rewards_gk)
        centred_gk, has_signal_g = centre(xp, rewards_gk)
        k = rewards_gk.shape[1]
        return Advantages(centred_gk * (k / (k - 1)), has_signal_g)


class Opo(Estimator):
    """Reward minus the length-weighted mean, ``r - sum(l r) / sum(l)`` (Hao et al. 2025, OPO, arXiv:2505.23585).

    The baseline of least variance when a completion's squared score grows with its length.  Advantages weighted by
    length sum to 0 in a group; unweighted ones do not.
    """

    name = "opo"
    needs = frozenset({"lengths_gk"})

    def estimate(self, batch: RewardBatch) -> Advantages:
        """Return each reward less its group's length-weighted mean; lengths are positive."""
        xp, rewards_gk = check_rewards(batch.rewards_gk)
        lengths_gk = check_lengths(batch.lengths_gk, rewards_gk)
        above_gk, has_signal_g = contrast(xp, rewards_gk)
        share_gk = lengths_gk / xp.sum(lengths_gk, axis=1, keepdims=True)
        return Advantages(above_gk - xp.sum(share_gk * above_gk, axis=1, keepdims=True), has_signal_g)


class WorkflowAware(Standardised):
    """GRPO, with groups of equal rewards told apart by the structure of what they wrote.

    A group with contrast gets :class:`Grpo`.  A group without gets ``mix`` times the GRPO advantage of the weighted
    sum of its features, so that structure never speaks louder than ``mix`` of a reward.  A group alike in both stays
    0 and is not live.  The idea and the weights are those of the AFlow-GRPO code (WA-GRPO); it adds the features to
    the rewards and standardises afterwards, which cancels the mixing weight and makes ties as loud as rewards.
    Features are higher for better, usually in [0, 1].
    """

    name = "workflow_aware"
    needs = frozenset({"features"})
    divides_by_std = True
    aims_at_mean = False
    mix: float = Field(0.12, ge=0, le=1e6)
    """Size of a structural advantage relative to one from rewards."""
    feature_weights: dict[str, float] = Field(default_factory=lambda: dict(STRUCTURE_WEIGHTS))
    """Which structural features count, and how much."""

    def features(self) -> list[str]:
        """Return the names of the features that it reads."""
        return list(self.feature_weights or STRUCTURE_WEIGHTS)

    def estimate(self, batch: RewardBatch) -> Advantages:
        """Return standardised rewards, or standardised structure where the rewards are alike."""
        xp, rewards_gk = check_rewards(batch.rewards_gk)
        features = batch.features or {}
        if missing := sorted(self.feature_weights.keys() - features.keys()):
            names = ", ".join(missing)
            raise ValueError(f"workflow_aware needs the features {names}; or leave them out of the weights")
        structure_gk = xp.zeros_like(rewards_gk)
        for name, weight in self.feature_weights.items():
            structure_gk = structure_gk + weight * check_like(f"features[{name!r}]", features[name], rewards_gk)
        by_reward_gk, contrast_g = standardise(xp, rewards_gk, ddof=self.ddof, eps=self.eps)
        by_structure_gk, differ_g = standardise(xp, structure_gk, ddof=self.ddof, eps=self.eps)
        values_gk = xp.where(contrast_g[:, None], by_reward_gk, self.mix * by_structure_gk)
        return Advantages(values_gk, contrast_g | (differ_g & (self.mix > 0)))
