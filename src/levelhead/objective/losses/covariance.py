"""Clip-Cov and KL-Cov (Cui et al. 2025): hold back the few tokens that cost the most entropy.

To first order the policy's entropy falls with the covariance of log-probability and advantage; both methods act on
the tokens where ``(A - mean A)(logp - mean logp)`` is large.  Means are over the tokens given, so a batch split into
micro-batches selects other tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from levelhead import metrics as metric
from levelhead.objective.losses.base import Loss, Surrogate
from levelhead.objective.losses.ppo import PpoClip

if TYPE_CHECKING:
    from torch import Tensor

    from levelhead.objective.losses.inputs import Inputs


class ClipCov(PpoClip):
    """PPO's surrogate with the gradient of a few tokens removed.

    Among the tokens that PPO does not clip and whose covariance lies between ``cov_low`` and ``cov_high``,
    ``cov_fraction`` of all tokens (at least one) are sampled and contribute nothing.
    """

    name = "clip_cov"
    selects_tokens = True
    cov_fraction: float = Field(2e-4, gt=0, le=1)
    """Share of the tokens that Clip-Cov detaches and KL-Cov penalises; at least one token."""
    cov_low: float = 1.0
    """Clip-Cov samples among tokens whose covariance is above this."""
    cov_high: float = 5.0
    """Clip-Cov samples among tokens whose covariance is below this."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if not self.cov_low < self.cov_high:
            raise ValueError(f"loss.cov_low ({self.cov_low}) must be below loss.cov_high ({self.cov_high})")
        return self

    def surrogate(self, inputs: Inputs) -> Surrogate:
        """Return PPO's value, 0 at the tokens that are held back."""
        from torch import randperm

        generator = inputs.generator
        if generator is None:
            raise ValueError(f"{self.name} samples tokens and needs a generator")
        base = super().surrogate(inputs)
        ratio_nt, advantages_nt = inputs.ratio_nt.detach(), inputs.advantages_nt
        high_nt = (ratio_nt > 1 + self.clip_high) & (advantages_nt > 0)
        clipped_nt = high_nt | ((ratio_nt < 1 - self.clip_low) & (advantages_nt < 0))
        covariance_nt = token_covariance(inputs)
        candidates_nt = (covariance_nt > self.cov_low) & (covariance_nt < self.cov_high) & ~clipped_nt
        candidates = candidates_nt.flatten().nonzero()[:, 0]
        order = randperm(len(candidates), generator=generator, device=generator.device)
        share = _share(inputs, self.cov_fraction)
        held_nt = _at(inputs, candidates[order[:share].to(candidates.device)])
        value_nt = base.value_nt.new_zeros(()).where(held_nt, base.value_nt)
        return Surrogate(value_nt, {**base.stats, metric.CLIP_COVARIANCE: inputs.mean(held_nt)})


class KlCov(Loss):
    """``r A``, with ``cov_kl |log r|`` taken from the tokens of largest covariance.

    ``cov_fraction`` of the tokens (at least one) are penalised.
    """

    name = "kl_cov"
    selects_tokens = True
    cov_fraction: float = Field(2e-4, gt=0, le=1)
    """Share of the tokens that Clip-Cov detaches and KL-Cov penalises; at least one token."""
    cov_kl: float = Field(1.0, ge=0, le=1e3)
    """KL-Cov's coefficient."""

    def surrogate(self, inputs: Inputs) -> Surrogate:
        """Return ``r A``, penalised at the selected tokens."""
        from levelhead.objective.terms import as_reward

        value_nt = inputs.ratio_nt * inputs.advantages_nt
        held_nt = _at(inputs, token_covariance(inputs).flatten().topk(_share(inputs, self.cov_fraction)).indices)
        penalised_nt = value_nt + self.cov_kl * as_reward(inputs.log_ratio_nt.abs(), "minimize")
        stats = {metric.RATIO_COVARIANCE: inputs.mean(held_nt), **inputs.ratio_stats()}
        return Surrogate(penalised_nt.where(held_nt, value_nt), stats)


def token_covariance(inputs: Inputs) -> Tensor:
    """Return ``(A - mean A)(logp - mean logp)`` of each token, detached, shape (n, t); minus infinity where masked."""
    logp_nt, advantages_nt = inputs.logp_nt.detach(), inputs.advantages_nt
    mean_logp, mean_advantage = logp_nt[inputs.mask_nt].mean(), advantages_nt[inputs.mask_nt].mean()
    covariance_nt = (advantages_nt - mean_advantage) * (logp_nt - mean_logp)
    return covariance_nt.masked_fill(~inputs.mask_nt, -math.inf)


def _share(inputs: Inputs, fraction: float) -> int:
    return max(int(fraction * int(inputs.mask_nt.sum())), 1)


def _at(inputs: Inputs, places: Tensor) -> Tensor:
    """Boolean (n, t), true at these places of the flattened batch."""
    return inputs.mask_nt.new_zeros(inputs.mask_nt.shape).flatten().index_fill(0, places, True).view_as(inputs.mask_nt)
