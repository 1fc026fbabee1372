"""Importance correction for a sampler that is not quite the trainer's policy.

The sampler draws from ``behaviour``, the trainer computes ``old``: other kernels, another precision, another version.
With ``r_t = old(y_t) / behaviour(y_t)`` of each token of a sequence y of n tokens, the surrogate of a token is weighted
by one of

- ``token_truncate``: ``min(max(r_t, low), high)``, truncated importance sampling (Ionides 2008, JCGS 17; Yao et al.
  2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"): variance for bias;
- ``token_mask``: ``r_t`` where ``low <= r_t <= high``, else 0 (IcePop: Ling Team 2025, arXiv:2510.18855): what has
  drifted too far is dropped;
- ``sequence_truncate``: ``min(max(R, low), high)`` with ``R = prod_t r_t``, the ratio of the whole sequence, without
  bias before it is truncated (Precup et al. 2000; Liu et al. 2025, "When Speed Kills Stability");
- ``sequence_mask``: ``R`` where ``low <= R <= high``, else 0 (Liu et al. 2025);
- ``geometric_mask``: ``r_t`` where ``low <= G <= high``, else 0, with ``G = (prod_t r_t)^(1/n)``, the ratio of GSPO
  (Zheng et al. 2025, arXiv:2507.18071) as a test of whole sequences (Liu et al. 2025; the geometric mask of prime-rl):
  R of a long sequence leaves every bound, G does not depend on its length.  Bounds lie close to 1.

Weights are constants: no gradient goes through them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from levelhead import metrics as metric
from levelhead.objective.numerics import bounded_exp, masked_mean, unmasked

Correction = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_mask"]


@dataclass(frozen=True, slots=True)
class ImportanceWeights:
    """Weights for the surrogate, with their statistics.

    Attributes:
        weight_nt: Detached weights, shape (n, t); 0 where masked.
        stats: Scalar float32 tensors under TRL's names, and the share of tokens that were cut.
    """

    weight_nt: Tensor
    stats: Mapping[str, Tensor]


def importance_weights(
    mode: str,
    old_logp_nt: Tensor,
    behaviour_logp_nt: Tensor,
    mask_nt: Tensor,
    *,
    low: float = 0.0,
    high: float = 2.0,
    validate: bool = True,
    places_m: Tensor | None = None,
) -> ImportanceWeights:
    """Return ``old / behaviour`` of each token or sequence, cut at ``low`` and ``high``.

    Args:
        mode: ``token_*`` takes the ratio of each token, ``sequence_*`` the product over the sequence's tokens;
            ``*_truncate`` clips it to ``[low, high]``, ``*_mask`` sets it to 0 outside; ``geometric_mask`` sets the
            ratios of all tokens to 0 where their geometric mean is outside.
        old_logp_nt: Log-probabilities of the sampled tokens as the trainer computes them.
        behaviour_logp_nt: As the sampler reported them.
        mask_nt: 1 for tokens that count.
        low: Lower bound.
        high: Upper bound.
        validate: Whether to look at the values of the tensors, for which a GPU has to be waited.
        places_m: Flat positions of the unmasked tokens, in order, for the same reason.

    Raises:
        ValueError: If the mode is unknown, shapes differ, bounds are out of order, nothing is unmasked, or a ratio is
            not finite.
    """
    if mode not in get_args(Correction):
        raise ValueError(f"unknown importance correction {mode!r}; choose one of {', '.join(get_args(Correction))}")
    if not (old_logp_nt.shape == behaviour_logp_nt.shape == mask_nt.shape and mask_nt.ndim == 2):
        raise ValueError(
            f"importance correction needs one shape (n, t), got {tuple(old_logp_nt.shape)}, "
            f"{tuple(behaviour_logp_nt.shape)} and {tuple(mask_nt.shape)}"
        )
    if not 0 <= low < high:
        raise ValueError(f"importance bounds must satisfy 0 <= low < high, got {low} and {high}")
    mask = mask_nt != 0
    if validate and not bool(mask.any()):
        raise ValueError("importance correction: the mask leaves no token")
    gap_nt = torch.where(mask, old_logp_nt.detach() - behaviour_logp_nt.detach(), torch.zeros_like(old_logp_nt))
    if validate and not bool(torch.isfinite(gap_nt).all()):
        raise ValueError("importance correction: a log-probability of an unmasked token is not finite")
    ratio_nt = tested_nt = bounded_exp(gap_nt)
    if mode.startswith("sequence"):
        ratio_nt = tested_nt = bounded_exp(gap_nt.sum(dim=-1, keepdim=True)).expand_as(mask)
    elif mode == "geometric_mask":
        lengths_n1 = mask.sum(dim=-1, keepdim=True).clamp(min=1)
        tested_nt = bounded_exp(gap_nt.sum(dim=-1, keepdim=True) / lengths_n1).expand_as(mask)
    outside_nt = (tested_nt < low) | (tested_nt > high)
    cut_nt = ratio_nt.clamp(low, high) if mode.endswith("truncate") else ratio_nt.masked_fill(outside_nt, 0.0)
    weights = unmasked(cut_nt, mask, places_m).to(torch.float32)
    stats = {
        metric.IMPORTANCE_MIN: weights.min(),
        metric.IMPORTANCE_MEAN: weights.mean(),
        metric.IMPORTANCE_MAX: weights.max(),
        metric.IMPORTANCE_CUT: masked_mean(outside_nt, mask, places_m),
    }
    return ImportanceWeights(torch.where(mask, cut_nt, torch.zeros_like(cut_nt)), stats)
