"""Estimators that compare a rollout with its own group and nothing else."""

from __future__ import annotations

from levelhead.objective.advantages.base import Advantages, Array, check_rewards, contrast, standardise


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
    above_gk, live_g = contrast(xp, rewards_gk)
    return Advantages(above_gk - xp.mean(above_gk, axis=1, keepdims=True), live_g)


def rloo(rewards_gk: Array) -> Advantages:
    """Reward minus the mean of the group's other rewards (Kool et al. 2019; Ahmadian et al. 2024, arXiv:2402.14740).

    Equal to ``K / (K - 1)`` times :func:`dr_grpo`.

    Args:
        rewards_gk: Rewards, shape (groups, K), K >= 2.
    """
    centred = dr_grpo(rewards_gk)
    k = centred.values_gk.shape[1]
    return Advantages(centred.values_gk * (k / (k - 1)), centred.live_g)
