"""What a surrogate reads and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Inputs:
    """Checked tensors of one batch of n sequences of t completion tokens, padded on the right.

    Attributes:
        logp_nt: Log-probabilities under the policy; 0 where masked.
        log_ratio_nt: ``logp - old_logp``; 0 where masked.
        advantages_nt: Advantages, broadcast over the tokens.
        mask_nt: Boolean, true for tokens that count.
    """

    logp_nt: Tensor
    log_ratio_nt: Tensor
    advantages_nt: Tensor
    mask_nt: Tensor

    def mean(self, values_nt: Tensor) -> Tensor:
        """Mean of ``values_nt`` over the unmasked tokens, detached."""
        return values_nt.detach()[self.mask_nt].to(torch.float32).mean()


@dataclass(frozen=True, slots=True)
class Surrogate:
    """What a surrogate function returns: its natural value a token, and its statistics."""

    value_nt: Tensor
    stats: Mapping[str, Tensor] = field(default_factory=dict)


def check(logp_nt: Tensor, old_logp_nt: Tensor, advantages: Tensor, mask_nt: Tensor) -> Inputs:
    """Check shapes and values, and clean the masked positions.

    Raises:
        ValueError: If shapes differ, an advantage is not finite, nothing is unmasked, or a log-probability of an
            unmasked token is NaN.
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
    advantages_nt = advantages.detach()
    advantages_nt = advantages_nt[:, None].expand_as(logp_nt) if advantages.ndim == 1 else advantages_nt
    zeros = torch.zeros_like(logp_nt)
    clean_nt = torch.where(mask, logp_nt, zeros)
    log_ratio_nt = clean_nt - torch.where(mask, old_logp_nt.detach(), zeros)
    advantages_nt = torch.where(mask, advantages_nt, torch.zeros_like(advantages_nt))
    if not bool(mask.any()):
        raise ValueError("policy loss: the mask leaves no token to learn from")
    if not bool(torch.isfinite(advantages_nt).all()):
        raise ValueError("policy loss: an advantage is not finite")
    if bool(torch.isnan(log_ratio_nt).any()):
        raise ValueError("policy loss: the log-probability of an unmasked token is NaN, or infinite on both sides")
    return Inputs(clean_nt, log_ratio_nt, advantages_nt, mask)
