"""Estimators that train for the best of k attempts instead of the mean of one.

With the rewards of a group of n in ascending order, the share of k-subsets in which a given one is the best is a
quotient of binomial coefficients, so that both estimators average over all subsets exactly and draw none.
"""

from __future__ import annotations

from math import comb
from types import ModuleType

from array_api_compat import device
from pydantic import Field

from levelhead.objective.advantages.base import Advantages, Array, check_rewards, contrast, divide
from levelhead.objective.advantages.estimator import Estimator, RewardBatch


class BestOfK(Estimator):
    """An estimator that trains for the best of ``k`` attempts."""

    aims_at_mean = False
    k: int = Field(4, ge=1)
    """Attempts of which the best counts."""


class PassAtK(BestOfK):
    """Advantage of the k-subsets a rollout belongs to (Chen et al. 2025, Pass@k Training, arXiv:2508.10751).

    A k-subset scores its best reward.  With mean ``m`` and population deviation ``s`` over all k-subsets, a rollout
    gets ``(E[best | it is in the subset] - m) / (s + eps)``.  For rewards 0 and 1 this is the paper's closed form.
    Advantages sum to 0 in a group.  A group in which every k-subset holds a best rollout is not live.  ``k`` of 1 is
    :class:`~levelhead.objective.advantages.groupwise.Grpo` with ``ddof=0``.
    """

    name = "pass_at_k"
    eps: float = Field(1e-4, ge=0, le=1e3)
    """Added to the deviation."""

    @property
    def min_group_size(self) -> int:
        """One more than a subset: one subset has nothing to be compared with."""
        return max(self.k + 1, 2)

    def estimate(self, batch: RewardBatch) -> Advantages:
        """Return what belonging to a rollout's subsets is worth; raises ``ValueError`` unless ``k`` is below K."""
        xp, rewards_gk = check_rewards(batch.rewards_gk)
        k, n = self.k, rewards_gk.shape[1]
        if not 1 <= k < n:
            raise ValueError(f"pass_at_k compares subsets of k rollouts and needs 1 <= k < K, got k={k} with K={n}")
        unit_gk, span_g1, rank_gk, _ = _ranked(xp, rewards_gk)
        best_gk = _at_rank(xp, [comb(rank, k - 1) / comb(n, k) for rank in range(n)], rank_gk, unit_gk)
        mean_g1 = xp.sum(best_gk * unit_gk, axis=1, keepdims=True)
        std_g1 = xp.sqrt(xp.sum(best_gk * (unit_gk - mean_g1) ** 2, axis=1, keepdims=True))
        own_gk = _at_rank(xp, [comb(rank, k - 1) / comb(n - 1, k - 1) for rank in range(n)], rank_gk, unit_gk)
        later = [comb(rank - 1, k - 2) / comb(n - 1, k - 1) if k > 1 and rank > 0 else 0.0 for rank in range(n)]
        above_gkj = rank_gk[:, None, :] > rank_gk[:, :, None]
        others_gkj = xp.where(
            above_gkj, (_at_rank(xp, later, rank_gk, unit_gk) * unit_gk)[:, None, :], 0.0 * unit_gk[:, None, :]
        )
        expected_gk = own_gk * unit_gk + xp.sum(others_gkj, axis=2)
        # The worst best of a k-subset is the k-th lowest reward; equal to the highest, all subsets score alike.
        kth_g = xp.sum(xp.where(rank_gk == k - 1, unit_gk, xp.zeros_like(unit_gk)), axis=1)
        has_signal_g = kth_g != xp.max(unit_gk, axis=1)
        values_gk = divide(xp, expected_gk - mean_g1, std_g1 + self.eps / span_g1, 0.0)
        return Advantages(xp.where(has_signal_g[:, None], values_gk, xp.zeros_like(values_gk)), has_signal_g)


class Pkpo(BestOfK):
    """What a rollout adds to the best of ``k - 1`` others (Walder and Karkhanis 2025, PKPO, arXiv:2505.15201, eq. 33).

    ``A_i = E_T[max(r_i, max T) - max T]`` over all subsets T of ``k - 1`` other rollouts: the paper's estimator
    with the leave-one-out baseline of size ``k - 1``, times ``n / k``.  The mean of ``k A_i grad log p_i`` over a
    group is an unbiased gradient of the expected best of k.  Never negative; for ``k = K`` only the best rollout gets
    anything, its lead over the second (Tang et al. 2025, arXiv:2503.19595).
    """

    name = "pkpo"

    @property
    def min_group_size(self) -> int:
        """As many as the attempts."""
        return max(self.k, 2)

    def estimate(self, batch: RewardBatch) -> Advantages:
        """Return each rollout's gain; raises ``ValueError`` unless ``2 <= k <= K`` (``rloo`` is one attempt)."""
        xp, rewards_gk = check_rewards(batch.rewards_gk)
        k, n = self.k, rewards_gk.shape[1]
        if not 2 <= k <= n:
            raise ValueError(f"pkpo needs 2 <= k <= K, got k={k} with K={n}; for k=1 use rloo")
        unit_gk, span_g1, rank_gk, contrast_g = _ranked(xp, rewards_gk)
        second = [comb(rank, k - 2) / comb(n - 1, k - 1) for rank in range(n)]
        lead_gkj = xp.where(
            rank_gk[:, None, :] < rank_gk[:, :, None],
            unit_gk[:, :, None] - unit_gk[:, None, :],
            xp.zeros_like(unit_gk)[:, None, :],
        )
        gain_gk = xp.sum(_at_rank(xp, second, rank_gk, unit_gk)[:, None, :] * lead_gkj, axis=2)
        return Advantages(gain_gk * span_g1, contrast_g & xp.any(gain_gk > 0, axis=1))


def _ranked(xp: ModuleType, rewards_gk: Array) -> tuple[Array, Array, Array, Array]:
    """Return rewards scaled to [0, 1], each group's span, ranks from 0 (ties by position), and groups with contrast."""
    above_gk, has_signal_g = contrast(xp, rewards_gk)
    span_g1 = xp.where(has_signal_g[:, None], xp.max(above_gk, axis=1, keepdims=True), xp.ones_like(above_gk[:, :1]))
    unit_gk = above_gk / span_g1
    order_gk = xp.argsort(unit_gk, axis=1, stable=True)
    return unit_gk, span_g1, xp.argsort(order_gk, axis=1, stable=True), has_signal_g


def _at_rank(xp: ModuleType, by_rank: list[float], rank_gk: Array, like_gk: Array) -> Array:
    """Return ``by_rank[rank]`` for each rollout, shape (groups, K)."""
    table_k = xp.asarray(by_rank, dtype=like_gk.dtype, device=device(like_gk))
    return xp.reshape(xp.take(table_k, xp.reshape(rank_gk, (-1,)), axis=0), rank_gk.shape)
