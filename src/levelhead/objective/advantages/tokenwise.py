"""Estimators that share a rollout's credit out among its tokens."""

from __future__ import annotations

from types import ModuleType

from levelhead.objective.advantages.base import Advantages, Array, check_like, check_rewards, contrast
from levelhead.objective.advantages.estimator import RewardBatch, Standardised

ENTROPY_FLOOR = 1e-6
"""Smaller entropies count as this, in nats, so that none is divided by."""


class Gtpo(Standardised):
    """Token credit shaped by entropy (Tan et al. 2025, GTPO and GRPO-S, arXiv:2508.04349, eq. 3, 5 and 6).

    At token position t, with ``d_t`` solved and ``h_t`` failed rollouts of the group still writing, a token scores::

        solved:    outcome_weight + entropy_weight * d_t * H_it / sum of H_kt over the solved
        failed:  -(outcome_weight + entropy_weight * h_t * (1 / H_it) / sum of 1 / H_kt over the failed)

    so that uncertain tokens of solved rollouts earn more and confident tokens of failed ones lose more, while the sum
    at a position depends on the outcomes alone.  Scores are then standardised over the tokens of the group.  The
    paper standardises solved and failed tokens apart (``apart=True``), after which a solved rollout has no advantage
    over a failed one on average; the default keeps the contrast between them.  A group on one side of the threshold is
    not live: the paper shapes it too, which trains on entropy without any word from the reward.
    """

    name = "gtpo"
    needs = frozenset({"entropies_gkt", "mask_gkt"})
    divides_by_std = True
    aims_at_mean = False
    by_token = True
    outcome_weight: float = 1.0
    """Weight of a token's outcome, the paper's alpha_1."""
    entropy_weight: float = 0.1
    """Weight of a token's share of the entropy, the paper's alpha_2."""
    threshold: float | None = None
    """A reward above it is solved; each group's mean unless given."""
    apart: bool = False
    """Standardise solved and failed tokens apart, as the paper does."""

    def estimate(self, batch: RewardBatch) -> Advantages:
        """Return advantages of tokens; of the rewards only the side of the threshold counts."""
        xp, rewards_gk = check_rewards(batch.rewards_gk)
        entropies_gkt, mask_gkt = _tokens(xp, rewards_gk, batch.entropies_gkt, batch.mask_gkt)
        solved_gk = _above_mean(xp, rewards_gk) if self.threshold is None else rewards_gk > self.threshold
        has_signal_g = xp.any(solved_gk, axis=1) & xp.any(~solved_gk, axis=1)
        solved_gkt = xp.where(solved_gk[:, :, None], mask_gkt, xp.zeros_like(mask_gkt))
        failed_gkt = mask_gkt - solved_gkt
        entropies_gkt = xp.clip(entropies_gkt, ENTROPY_FLOOR, None)
        outcome, entropy = self.outcome_weight, self.entropy_weight
        score_gkt = solved_gkt * (outcome + entropy * _share(xp, entropies_gkt, solved_gkt))
        score_gkt = score_gkt - failed_gkt * (outcome + entropy * _share(xp, 1 / entropies_gkt, failed_gkt))
        if self.apart:
            tokens_gkt = _standardise_tokens(xp, score_gkt, solved_gkt, self.ddof, self.eps)
            tokens_gkt = tokens_gkt + _standardise_tokens(xp, score_gkt, failed_gkt, self.ddof, self.eps)
        else:
            tokens_gkt = _standardise_tokens(xp, score_gkt, mask_gkt, self.ddof, self.eps)
        tokens_gkt = xp.where(has_signal_g[:, None, None], tokens_gkt, xp.zeros_like(tokens_gkt))
        values_gk = xp.sum(tokens_gkt, axis=2) / xp.sum(mask_gkt, axis=2)
        return Advantages(values_gk, has_signal_g, tokens_gkt)


def _above_mean(xp: ModuleType, rewards_gk: Array) -> Array:
    """Return which rewards lie above their group's mean; one at the mean up to rounding does not."""
    above_gk, _ = contrast(xp, rewards_gk)
    rounding_g1 = 8 * xp.finfo(rewards_gk.dtype).eps * xp.max(xp.abs(rewards_gk), axis=1, keepdims=True)
    return above_gk > xp.mean(above_gk, axis=1, keepdims=True) + rounding_g1


def _tokens(xp: ModuleType, rewards_gk: Array, entropies_gkt: Array, mask_gkt: Array) -> tuple[Array, Array]:
    entropies_gkt = check_like("entropies_gkt", entropies_gkt, rewards_gk, axes=3)
    mask_gkt = check_like("mask_gkt", mask_gkt, rewards_gk, axes=3)
    if entropies_gkt.shape != mask_gkt.shape:
        raise ValueError(f"entropies_gkt is {tuple(entropies_gkt.shape)} and mask_gkt {tuple(mask_gkt.shape)}")
    if not bool(xp.all((mask_gkt == 0) | (mask_gkt == 1))):
        raise ValueError("mask_gkt must hold only 0 and 1")
    if not bool(xp.all(xp.any(mask_gkt == 1, axis=2))):
        raise ValueError("mask_gkt leaves a rollout without any token")
    if float(xp.min(entropies_gkt)) < 0:
        raise ValueError(f"entropies_gkt holds {float(xp.min(entropies_gkt)):g}; an entropy is never negative")
    return entropies_gkt, mask_gkt


def _share(xp: ModuleType, weight_gkt: Array, member_gkt: Array) -> Array:
    """Return each member's weight relative to the mean over the members at its position; its mean there is 1."""
    weight_gkt = weight_gkt * member_gkt
    total_g1t = xp.sum(weight_gkt, axis=1, keepdims=True)
    count_g1t = xp.sum(member_gkt, axis=1, keepdims=True)
    return weight_gkt * count_g1t / xp.where(count_g1t > 0, total_g1t, xp.ones_like(total_g1t))


def _standardise_tokens(xp: ModuleType, score_gkt: Array, member_gkt: Array, ddof: int, eps: float) -> Array:
    """Return ``(score - mean) / (std + eps)`` over the member tokens of each group, 0 elsewhere."""
    member = member_gkt > 0
    count_g11 = xp.sum(member_gkt, axis=(1, 2), keepdims=True)
    safe_g11 = xp.clip(count_g11, 1, None)
    mean_g11 = xp.sum(score_gkt * member_gkt, axis=(1, 2), keepdims=True) / safe_g11
    centred_gkt = xp.where(member, score_gkt - mean_g11, xp.zeros_like(score_gkt))
    variance_g11 = xp.sum(centred_gkt**2, axis=(1, 2), keepdims=True) / xp.clip(count_g11 - ddof, 1, None)
    # Shares of equal entropies are 1 up to rounding: such a spread is none, and must not be blown up to full size.
    noise_g11 = 32 * xp.finfo(score_gkt.dtype).eps * xp.max(xp.abs(score_gkt), axis=(1, 2), keepdims=True)
    std_g11 = xp.sqrt(variance_g11)
    return xp.where(
        std_g11 > noise_g11,
        centred_gkt / xp.where(std_g11 > 0, std_g11 + eps, xp.ones_like(std_g11)),
        xp.zeros_like(centred_gkt),
    )
