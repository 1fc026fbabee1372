"""What a loss reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from levelhead import metrics as metric
from levelhead.objective.numerics import beyond, bounded_exp, masked_mean, unmasked


@dataclass(frozen=True, slots=True)
class Inputs:
    """Checked tensors of one batch of n sequences of t completion tokens, padded on the right.

    Attributes:
        logp_nt: Log-probabilities under the policy; 0 where masked.
        log_ratio_nt: ``logp - old_logp``; 0 where masked.
        advantages_nt: Advantages, broadcast over the tokens; 0 where masked.
        mask_nt: Boolean, true for tokens that count.
        by_sequence: Whether the advantages came one a sequence.
        generator: Source of randomness, for losses that sample.
        places_m: Flat positions of the tokens that count, where the caller has them.
    """

    logp_nt: Tensor
    log_ratio_nt: Tensor
    advantages_nt: Tensor
    mask_nt: Tensor
    by_sequence: bool
    generator: torch.Generator | None = None
    places_m: Tensor | None = None

    @property
    def ratio_nt(self) -> Tensor:
        """Importance ratio of each token, with gradient; finite (see :func:`bounded_exp`)."""
        return bounded_exp(self.log_ratio_nt)

    def mean(self, values_nt: Tensor) -> Tensor:
        """Mean of ``values_nt`` over the unmasked tokens, detached."""
        return masked_mean(values_nt, self.mask_nt, self.places_m)

    def sequence_mean(self, values_nt: Tensor) -> Tensor:
        """Mean over the unmasked tokens of each sequence, shape (n, 1); 0 for a sequence without one."""
        lengths_n1 = self.mask_nt.sum(dim=-1, keepdim=True).clamp(min=1)
        return torch.where(self.mask_nt, values_nt, torch.zeros_like(values_nt)).sum(dim=-1, keepdim=True) / lengths_n1

    def clip_stats(self, low_nt: Tensor, high_nt: Tensor) -> dict[str, Tensor]:
        """Shares of tokens clipped below, above, and either."""
        return {
            metric.CLIP_LOW: self.mean(low_nt),
            metric.CLIP_HIGH: self.mean(high_nt),
            metric.CLIP_REGION: self.mean(low_nt | high_nt),
        }

    def ratio_stats(self) -> dict[str, Tensor]:
        """Mean and largest ratio, and the share of tokens whose ratio was bounded."""
        ratios = unmasked(self.ratio_nt, self.mask_nt, self.places_m).to(torch.float32)
        return {
            metric.RATIO_MEAN: ratios.mean(),
            metric.RATIO_MAX: ratios.max(),
            metric.RATIO_BOUNDED: self.mean(beyond(self.log_ratio_nt)),
        }


def check(
    logp_nt: Tensor,
    old_logp_nt: Tensor,
    advantages: Tensor,
    mask_nt: Tensor,
    generator: torch.Generator | None = None,
    *,
    validate: bool = True,
    places_m: Tensor | None = None,
) -> Inputs:
    """Check shapes and, with ``validate``, values, and clean the masked positions.

    Raises:
        ValueError: If shapes differ, an advantage is not finite, nothing is unmasked, or the log-ratio of an unmasked
            token is NaN or infinite.
    """
    if logp_nt.ndim != 2 or logp_nt.shape != old_logp_nt.shape or logp_nt.shape != mask_nt.shape:
        raise ValueError(
            f"policy loss: logp, old_logp and mask need one shape (n, t), got {tuple(logp_nt.shape)}, "
            f"{tuple(old_logp_nt.shape)} and {tuple(mask_nt.shape)}"
        )
    if advantages.shape not in (logp_nt.shape, logp_nt.shape[:1]):
        raise ValueError(
            f"policy loss: advantages need shape {tuple(logp_nt.shape[:1])} or {tuple(logp_nt.shape)}, "
            f"got {tuple(advantages.shape)}"
        )
    mask = mask_nt != 0
    if validate and not bool(mask.any()):
        raise ValueError("policy loss: the mask leaves no token to learn from")
    by_sequence = advantages.ndim == 1
    advantages_nt = advantages.detach()[:, None].expand_as(logp_nt) if by_sequence else advantages.detach()
    advantages_nt = torch.where(mask, advantages_nt, torch.zeros_like(advantages_nt))
    if validate and not bool(torch.isfinite(advantages_nt).all()):
        raise ValueError("policy loss: an advantage is not finite")
    zeros = torch.zeros_like(logp_nt)
    clean_nt = torch.where(mask, logp_nt, zeros)
    log_ratio_nt = clean_nt - torch.where(mask, old_logp_nt.detach(), zeros)
    if validate and not bool(torch.isfinite(log_ratio_nt).all()):
        raise ValueError("policy loss: a log-probability of an unmasked token is not finite")
    return Inputs(clean_nt, log_ratio_nt, advantages_nt, mask, by_sequence, generator, places_m)
