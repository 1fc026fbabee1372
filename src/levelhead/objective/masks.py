"""Which tokens count: those where the policy was in doubt, and weights of tokens together."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def entropy_threshold(entropies_nt: Tensor, mask_nt: Tensor, fraction: float) -> float:
    """Return the entropy that ``fraction`` of the unmasked tokens reach, over the whole batch.

    It is the entropy of the ``ceil(fraction m)``-th largest of m tokens, an order statistic without interpolation.
    Where those tokens alone are learnt from (Wang et al. 2025, "80/20"), the loss is still divided by all tokens.

    Raises:
        ValueError: If shapes differ, the fraction is not in (0, 1], or nothing is unmasked.
    """
    if entropies_nt.shape != mask_nt.shape:
        raise ValueError(f"entropies {tuple(entropies_nt.shape)} and mask {tuple(mask_nt.shape)} differ in shape")
    if not 0 < fraction <= 1:
        raise ValueError(f"the fraction of tokens to keep must be in (0, 1], got {fraction}")
    values = entropies_nt.detach()[mask_nt != 0]
    if len(values) == 0:
        raise ValueError("top entropy: the mask leaves no token")
    return float(values.topk(math.ceil(fraction * len(values))).values[-1])


def combine_weights(*weights: Tensor | None) -> Tensor | None:
    """Return the product of the weights that exist, as floats, or ``None`` where none does."""
    present = [weight for weight in weights if weight is not None]
    if not present:
        return None
    product = present[0].detach().to(torch.promote_types(present[0].dtype, torch.float32))
    for weight in present[1:]:
        product = product * weight.detach()
    return product
