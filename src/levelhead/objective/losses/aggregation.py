"""From tokens to a scalar: the three aggregations, and how micro-batches add up to the whole batch."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Aggregation = Literal["token_mean", "sequence_mean", "fixed_length"]


def count(mode: str, mask_nt: Tensor) -> int:
    """Return what ``mode`` divides by, summed over the batch: pass it as ``denominator`` for each micro-batch.

    ``token_mean`` counts unmasked tokens, ``sequence_mean`` sequences with at least one unmasked token,
    ``fixed_length`` all sequences.

    Raises:
        ValueError: If the mode is unknown.
    """
    if mode == "token_mean":
        return int((mask_nt != 0).sum())
    if mode == "sequence_mean":
        return int((mask_nt != 0).any(dim=-1).sum())
    if mode == "fixed_length":
        return int(mask_nt.shape[0])
    raise ValueError(f"unknown aggregation {mode!r}; choose one of {', '.join(get_args(Aggregation))}")


def aggregate(
    mode: str,
    per_token_nt: Tensor,
    mask_nt: Tensor,
    *,
    fixed_length: int | None = None,
    denominator: float | None = None,
) -> Tensor:
    """Reduce per-token values to a scalar.

    - ``token_mean`` (DAPO, Yu et al. 2025): every unmasked token of the batch weighs the same.
    - ``sequence_mean`` (GRPO, Shao et al. 2024): the mean over sequences of each sequence's token mean.  A sequence
      without an unmasked token is left out of the mean, not counted as a zero.
    - ``fixed_length`` (Dr. GRPO, Liu et al. 2025): the sum over tokens divided by sequences times ``fixed_length``.

    Args:
        mode: One of the above.
        per_token_nt: Values, shape (n, t).
        mask_nt: 1 for tokens that count, 0 for the others, shape (n, t).
        fixed_length: Length of ``fixed_length``, usually the completion budget.
        denominator: What is divided by instead of :func:`count` of these values: that of the whole update, so that the
            values of its micro-batches add up, and a micro-batch may be fully masked.

    Raises:
        ValueError: If shapes differ, the mode is unknown, ``fixed_length`` is missing, or nothing is unmasked.
    """
    if per_token_nt.shape != mask_nt.shape or mask_nt.ndim != 2:
        raise ValueError(
            f"aggregate needs values and mask of one shape (n, t), got {tuple(per_token_nt.shape)} "
            f"and {tuple(mask_nt.shape)}"
        )
    divisor = count(mode, mask_nt) if denominator is None else denominator
    if divisor <= 0 or (denominator is None and not bool((mask_nt != 0).any())):
        raise ValueError("aggregate: the mask leaves no token to average over")
    kept_nt = torch.where(mask_nt != 0, per_token_nt, torch.zeros_like(per_token_nt))
    if mode == "sequence_mean":
        lengths_n = (mask_nt != 0).sum(dim=-1).clamp(min=1)
        return (kept_nt.sum(dim=-1) / lengths_n).sum() / divisor
    if mode == "fixed_length":
        if fixed_length is None or fixed_length < 1:
            raise ValueError(f"aggregation 'fixed_length' needs fixed_length of at least 1, got {fixed_length}")
        return kept_nt.sum() / (divisor * fixed_length)
    return kept_nt.sum() / divisor
