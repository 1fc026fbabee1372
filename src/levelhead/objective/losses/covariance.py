"""Clip-Cov and KL-Cov (Cui et al. 2025): hold back the few tokens that cost the most entropy.

To first order the policy's entropy falls with the covariance of log-probability and advantage; both methods act on
the tokens where ``(A - mean A)(logp - mean logp)`` is large.  Means are over the tokens given, so a batch split into
micro-batches chooses other tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from levelhead import metrics as metric
from levelhead.objective.losses.clipped import ppo_clip
from levelhead.objective.losses.inputs import Inputs, Surrogate
from levelhead.objective.losses.options import Options
from levelhead.objective.terms import as_reward


def token_covariance(inputs: Inputs) -> Tensor:
    """Return ``(A - mean A)(logp - mean logp)`` of each token, detached, shape (n, t); minus infinity where masked."""
    logp_nt, advantages_nt = inputs.logp_nt.detach(), inputs.advantages_nt
    mean_logp, mean_advantage = logp_nt[inputs.mask_nt].mean(), advantages_nt[inputs.mask_nt].mean()
    covariance_nt = (advantages_nt - mean_advantage) * (logp_nt - mean_logp)
    return torch.where(inputs.mask_nt, covariance_nt, -torch.inf)


def clip_cov(inputs: Inputs, options: Options) -> Surrogate:
    """PPO's surrogate with the gradient of a few tokens removed.

    Among the tokens that PPO does not clip and whose covariance lies between ``cov_low`` and ``cov_high``,
    ``cov_fraction`` of all tokens (at least one) are drawn and contribute nothing.

    Raises:
        ValueError: If no generator is given.
    """
    if options.generator is None:
        raise ValueError("clip_cov draws tokens at random and needs a generator")
    base = ppo_clip(inputs, options)
    ratio_nt, advantages_nt = inputs.ratio_nt.detach(), inputs.advantages_nt
    high_nt = (ratio_nt > 1 + options.clip_high) & (advantages_nt > 0)
    clipped_nt = high_nt | ((ratio_nt < 1 - options.clip_low) & (advantages_nt < 0))
    covariance_nt = token_covariance(inputs)
    candidates_nt = (covariance_nt > options.cov_low) & (covariance_nt < options.cov_high) & ~clipped_nt
    candidates = candidates_nt.flatten().nonzero()[:, 0]
    order = torch.randperm(len(candidates), generator=options.generator, device=options.generator.device)
    chosen = candidates[order[: _share(inputs, options)].to(candidates.device)]
    held_nt = torch.zeros_like(inputs.mask_nt).flatten().index_fill(0, chosen, True).view_as(inputs.mask_nt)
    value_nt = torch.where(held_nt, torch.zeros_like(base.value_nt), base.value_nt)
    return Surrogate(value_nt, {**base.stats, metric.CLIP_COVARIANCE: inputs.mean(held_nt)})


def kl_cov(inputs: Inputs, options: Options) -> Surrogate:
    """``r A``, with ``cov_kl |log r|`` taken from the tokens of largest covariance.

    ``cov_fraction`` of the tokens (at least one) are penalised.
    """
    value_nt = inputs.ratio_nt * inputs.advantages_nt
    chosen = token_covariance(inputs).flatten().topk(_share(inputs, options)).indices
    held_nt = torch.zeros_like(inputs.mask_nt).flatten().index_fill(0, chosen, True).view_as(inputs.mask_nt)
    penalised_nt = value_nt + options.cov_kl * as_reward(inputs.log_ratio_nt.abs(), "minimize")
    stats = {metric.RATIO_COVARIANCE: inputs.mean(held_nt), **inputs.ratio_stats()}
    return Surrogate(torch.where(held_nt, penalised_nt, value_nt), stats)


def _share(inputs: Inputs, options: Options) -> int:
    return max(int(options.cov_fraction * int(inputs.mask_nt.sum())), 1)
