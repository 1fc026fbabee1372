"""Estimators that compare a rollout with its own group and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from levelhead.objective.advantages.base import (
    Advantages,
    Array,
    centre,
    check_lengths,
    check_like,
    check_rewards,
    contrast,
    standardise,
)

STRUCTURE_WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "diversity": 0.35,
        "improvement": 0.25,
        "execution_success": 0.20,
        "efficiency": 0.10,
        "operator_variety": 0.10,
    }
)
"""Weights of the structural features of :func:`workflow_aware`."""


def grpo(rewards_gk: Array, *, ddof: int = 1, eps: float = 1e-4) -> Advantages:
    """Group-relative advantage, ``(r - mean) / (std + eps)`` (Shao et al. 2024, arXiv:2402.03300, section 4.1.2).

    Args:
        rewards_gk: Rewards, shape (groups, K), K >= 2.
        ddof: 1 sample, 0 population standard deviation.
        eps: Added to the standard deviation.
    """
    xp, rewards_gk = check_rewards(rewards_gk)
    return Advantages(*standardise(xp, rewards_gk, ddof=ddof, eps=eps))


def dr_grpo(rewards_gk: Array) -> Advantages:
    """Centred reward without the division, ``r - mean`` (Liu et al. 2025, Dr. GRPO, arXiv:2503.20783).

    Args:
        rewards_gk: Rewards, shape (groups, K), K >= 2.
    """
    xp, rewards_gk = check_rewards(rewards_gk)
    return Advantages(*centre(xp, rewards_gk))


def rloo(rewards_gk: Array) -> Advantages:
    """Reward minus the mean of the group's other rewards (Kool et al. 2019; Ahmadian et al. 2024, arXiv:2402.14740).

    Equal to ``K / (K - 1)`` times :func:`dr_grpo`.

    Args:
        rewards_gk: Rewards, shape (groups, K), K >= 2.
    """
    xp, rewards_gk = check_rewards(rewards_gk)
    centred_gk, live_g = centre(xp, rewards_gk)
    k = rewards_gk.shape[1]
    return Advantages(centred_gk * (k / (k - 1)), live_g)


def opo(rewards_gk: Array, *, lengths_gk: Array) -> Advantages:
    """Reward minus the length-weighted mean, ``r - sum(l r) / sum(l)`` (Hao et al. 2025, OPO, arXiv:2505.23585).

    The baseline of least variance when a completion's squared score grows with its length.  Advantages weighted by
    length sum to 0 in a group; unweighted ones do not.

    Args:
        rewards_gk: Rewards, shape (groups, K), K >= 2.
        lengths_gk: Completion tokens, shape (groups, K), all positive.
    """
    xp, rewards_gk = check_rewards(rewards_gk)
    lengths_gk = check_lengths(lengths_gk, rewards_gk)
    above_gk, live_g = contrast(xp, rewards_gk)
    share_gk = lengths_gk / xp.sum(lengths_gk, axis=1, keepdims=True)
    return Advantages(above_gk - xp.sum(share_gk * above_gk, axis=1, keepdims=True), live_g)


def workflow_aware(
    rewards_gk: Array,
    *,
    features: Mapping[str, Array],
    feature_weights: Mapping[str, float] = STRUCTURE_WEIGHTS,
    mix: float = 0.12,
    ddof: int = 1,
    eps: float = 1e-4,
) -> Advantages:
    """GRPO, with groups of equal rewards told apart by the structure of what they wrote.

    A group with contrast gets :func:`grpo`.  A group without gets ``mix`` times the GRPO advantage of the weighted
    sum of its features, so that structure never speaks louder than ``mix`` of a reward.  A group alike in both stays
    0 and is not live.  The idea and the weights are those of the AFlow-GRPO code (WA-GRPO); it adds the features to
    the rewards and standardises afterwards, which cancels the mixing weight and makes ties as loud as rewards.

    Args:
        rewards_gk: Rewards, shape (groups, K), K >= 2.
        features: A number for each rollout by feature name, higher is better, usually in [0, 1]; shape (groups, K).
        feature_weights: Which features count, and how much.
        mix: Size of a structural advantage relative to one from rewards.
        ddof: 1 sample, 0 population standard deviation.
        eps: Added to the standard deviation.
    """
    xp, rewards_gk = check_rewards(rewards_gk)
    if missing := sorted(feature_weights.keys() - features.keys()):
        raise ValueError(f"workflow_aware needs the features {', '.join(missing)}; or leave them out of the weights")
    if not mix >= 0:
        raise ValueError(f"mix must be 0 or more, got {mix!r}")
    structure_gk = xp.zeros_like(rewards_gk)
    for name, weight in feature_weights.items():
        structure_gk = structure_gk + weight * check_like(f"features[{name!r}]", features[name], rewards_gk)
    by_reward_gk, contrast_g = standardise(xp, rewards_gk, ddof=ddof, eps=eps)
    by_structure_gk, differ_g = standardise(xp, structure_gk, ddof=ddof, eps=eps)
    values_gk = xp.where(contrast_g[:, None], by_reward_gk, mix * by_structure_gk)
    return Advantages(values_gk, contrast_g | (differ_g & (mix > 0)))
