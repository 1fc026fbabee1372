"""Estimators that take a mean or a standard deviation over the whole batch.

Statistics count every rollout once, or every token once where ``lengths_gk`` is given (a rollout then counts as often
as it has tokens).  A group without contrast gets 0 from every estimator with a group baseline: a batch mean that
token weights move away from 0 is used for the standard deviation and never subtracted.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

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


def batch(rewards_gk: Array, *, ddof: int = 1, eps: float = 1e-4) -> Advantages:
    """Group mean, batch deviation: ``(r - mean_group) / (std_batch + eps)`` (Liu et al. 2025, arXiv:2508.08221).

    The standard deviation is that of all rewards of the batch, as they are, not of the centred ones.

    Args:
        rewards_gk: Rewards, shape (groups, K), K >= 2.
        ddof: 1 sample, 0 population standard deviation.
        eps: Added to the standard deviation.
    """
    xp, rewards_gk = check_rewards(rewards_gk)
    centred_gk, live_g = centre(xp, rewards_gk)
    _, std = batch_moments(xp, rewards_gk, ddof=ddof, weights_gk=None)
    return Advantages(divide(xp, centred_gk, std, eps), live_g)


def reinforce_pp(rewards_gk: Array, *, lengths_gk: Array | None = None, ddof: int = 1, eps: float = 1e-4) -> Advantages:
    """Rewards whitened over the batch, ``(r - mean_batch) / (std_batch + eps)`` (Hu et al. 2025, arXiv:2501.03262).

    There is no group baseline: a group of equal rewards is live as long as it differs from the batch mean.

    Args:
        rewards_gk: Rewards, shape (groups, K), K >= 2.
        lengths_gk: Completion tokens, shape (groups, K): mean and deviation over tokens; ``None`` over rollouts.
        ddof: 1 sample, 0 population standard deviation.
        eps: Added to the standard deviation.
    """
    xp, rewards_gk = check_rewards(rewards_gk)
    weights_gk = None if lengths_gk is None else check_lengths(lengths_gk, rewards_gk)
    centred_gk, std = batch_moments(xp, rewards_gk, ddof=ddof, weights_gk=weights_gk)
    values_gk = divide(xp, centred_gk, std, eps)
    return Advantages(values_gk, xp.any(values_gk != 0, axis=1))


def reinforce_pp_baseline(
    rewards_gk: Array, *, lengths_gk: Array | None = None, ddof: int = 1, eps: float = 1e-4
) -> Advantages:
    """Group mean, then the batch deviation of the centred rewards (Hu et al. 2025, arXiv:2501.03262).

    Unlike :func:`batch`, the deviation leaves out how much groups differ from one another.

    Args:
        rewards_gk: Rewards, shape (groups, K), K >= 2.
        lengths_gk: Completion tokens, shape (groups, K): deviation over tokens; ``None`` over rollouts.
        ddof: 1 sample, 0 population standard deviation.
        eps: Added to the standard deviation.
    """
    xp, rewards_gk = check_rewards(rewards_gk)
    weights_gk = None if lengths_gk is None else check_lengths(lengths_gk, rewards_gk)
    centred_gk, live_g = centre(xp, rewards_gk)
    _, std = batch_moments(xp, centred_gk, ddof=ddof, weights_gk=weights_gk)
    return Advantages(divide(xp, centred_gk, std, eps), live_g)


def gdpo(
    rewards_gk: Array,
    *,
    parts: Mapping[str, Array],
    weights: Mapping[str, float] | None = None,
    applies: Mapping[str, Array] | None = None,
    lengths_gk: Array | None = None,
    batch_norm: bool = True,
    ddof: int = 1,
    eps: float = 1e-4,
) -> Advantages:
    """Each named reward standardised in its group, then weighted, summed, divided by the batch deviation (GDPO).

    ``A = sum_n w_n (r_n - mean_n) / (std_n + eps)`` within a group, then ``A / (std_batch(A) + eps)``
    (Liu et al. 2026, arXiv:2601.05242).  Rewards of different scale or rarity keep their own resolution.

    Args:
        rewards_gk: Total rewards, shape (groups, K), K >= 2; they give the shape and nothing else.
        parts: Named rewards, each of shape (groups, K).
        weights: Weight of each part; 1 where none is named.
        applies: Which rollouts a part applies to, boolean, shape (groups, K); all where none is named.  Mean and
            deviation of the part are over these, and it adds 0 to the others.
        lengths_gk: Completion tokens, shape (groups, K): batch deviation over tokens; ``None`` over rollouts.
        batch_norm: Whether to divide by the batch deviation.
        ddof: 1 sample, 0 population standard deviation, in both places.
        eps: Added to the standard deviation, in both places.
    """
    xp, rewards_gk = check_rewards(rewards_gk)
    weights = {} if weights is None else weights
    if not parts:
        raise ValueError("gdpo needs at least one named reward in parts")
    if unknown := sorted(weights.keys() - parts.keys()):
        raise ValueError(f"gdpo has a weight for {unknown[0]!r}, which is no named reward; known: {', '.join(parts)}")
    total_gk = xp.zeros_like(rewards_gk)
    size_gk = xp.zeros_like(rewards_gk)
    for name, part_gk in parts.items():
        part_gk = check_like(f"parts[{name!r}]", part_gk, rewards_gk)
        if applies is not None and name in applies:
            mask_gk = check_like(f"applies[{name!r}]", applies[name], rewards_gk) != 0
            values_gk = _standardise_where(xp, part_gk, mask_gk, ddof=ddof, eps=eps)
        else:
            values_gk, _ = standardise(xp, part_gk, ddof=ddof, eps=eps)
        total_gk = total_gk + weights.get(name, 1.0) * values_gk
        size_gk = size_gk + abs(weights.get(name, 1.0)) * xp.abs(values_gk)
    # Parts that cancel leave rounding errors behind, which a small batch deviation would blow up to full size.
    range_g = xp.max(total_gk, axis=1) - xp.min(total_gk, axis=1)
    live_g = range_g > 32 * xp.finfo(rewards_gk.dtype).eps * xp.max(size_gk, axis=1)
    total_gk = xp.where(live_g[:, None], total_gk, xp.zeros_like(total_gk))
    if batch_norm:
        weights_gk = None if lengths_gk is None else check_lengths(lengths_gk, rewards_gk)
        _, std = batch_moments(xp, total_gk, ddof=ddof, weights_gk=weights_gk)
        total_gk = divide(xp, total_gk, std, eps)
    return Advantages(total_gk, live_g)


def _standardise_where(xp: ModuleType, part_gk: Array, mask_gk: Array, *, ddof: int, eps: float) -> Array:
    """:func:`standardise` of the entries that count; others, and those with no deviation to divide by, are 0."""
    values_gk = xp.zeros_like(part_gk)
    for g in range(part_gk.shape[0]):
        own = part_gk[g, :][mask_gk[g, :]]
        if own.shape[0] > max(ddof, 1):
            standard, _ = standardise(xp, own[None, :], ddof=ddof, eps=eps)
            values_gk[g, mask_gk[g, :]] = standard[0, :]
    return values_gk
