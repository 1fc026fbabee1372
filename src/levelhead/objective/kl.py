"""The KL divergence from the policy to its reference, estimated from the tokens that were sampled (Schulman 2020).

With the log-ratio ``d = logp - ref_logp`` of a token sampled from the policy:

- ``k1 = d``: unbiased, may be negative, high variance;
- ``k2 = d**2 / 2``: biased to third order, but its gradient on policy is the unbiased gradient of the KL;
- ``k3 = exp(-d) - 1 + d``: unbiased, never negative; its gradient is not the KL's.

The value and the gradient are therefore two choices, see ``gradient`` of :func:`estimate`.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from levelhead.objective.numerics import LIMIT, bounded_exp

Estimator = Literal["k1", "k2", "k3"]
Gradient = Literal["plain", "k2", "importance"]

SERIES_BELOW = {torch.float64: 1e-2}
"""Absolute log-ratio below which k3 is summed as a series, 0.1 unless listed: ``expm1(-d) + d`` would lose its digits.

The series stops at the fifth power: its relative error is ``d**4 / 360``.
"""


def estimate(
    name: str,
    logp_nt: Tensor,
    ref_logp_nt: Tensor,
    *,
    gradient: str = "plain",
    old_logp_nt: Tensor | None = None,
    limit: float = LIMIT,
) -> Tensor:
    """Return the per-token KL estimate, shape (n, t), in nats.

    Where the reference finds a token ``exp(limit)`` times likelier than the policy does, k3 continues along its
    tangent: finite, and still pulling back.

    Args:
        name: ``k1``, ``k2`` or ``k3``: the value.
        logp_nt: Log-probabilities of the sampled tokens under the policy.
        ref_logp_nt: The same under the reference; no gradient flows into it.  Padding must be finite on both sides.
        gradient: ``plain`` differentiates the value as it stands (on policy k1's gradient is zero on average and k3's
            is that of the reversed divergence); ``k2`` keeps the value and takes k2's gradient, unbiased on policy
            (Liu et al. 2025, verl's ``+``); ``importance`` multiplies by ``pi / pi_old`` and differentiates through
            the product, unbiased off policy too (DeepSeek-V3.2; TRL's ``use_bias_correction_kl``).
        old_logp_nt: Log-probabilities under the policy that sampled the tokens, for ``importance``.
        limit: Bound on the exponents.

    Raises:
        ValueError: If a name is unknown, shapes differ, or ``old_logp_nt`` is missing or not wanted.
    """
    if logp_nt.shape != ref_logp_nt.shape:
        raise ValueError(f"kl: logp has shape {tuple(logp_nt.shape)} and ref_logp {tuple(ref_logp_nt.shape)}")
    if gradient not in get_args(Gradient):
        raise ValueError(f"unknown KL gradient {gradient!r}; choose one of {', '.join(get_args(Gradient))}")
    if (gradient == "importance") != (old_logp_nt is not None):
        raise ValueError("kl: gradient 'importance' needs old_logp, and the others take none")
    gap_nt = logp_nt - ref_logp_nt.detach()
    value_nt = _value(name, gap_nt, limit)
    if gradient == "k2":
        half_square_nt = gap_nt.square() / 2
        return value_nt.detach() + half_square_nt - half_square_nt.detach()
    if old_logp_nt is not None:
        if old_logp_nt.shape != logp_nt.shape:
            raise ValueError(f"kl: logp has shape {tuple(logp_nt.shape)} and old_logp {tuple(old_logp_nt.shape)}")
        return value_nt * bounded_exp(logp_nt - old_logp_nt.detach(), limit)
    return value_nt


def _value(name: str, gap_nt: Tensor, limit: float) -> Tensor:
    if name == "k1":
        return gap_nt
    if name == "k2":
        return gap_nt.square() / 2
    if name == "k3":
        inside_nt = gap_nt.clamp(min=-limit)
        exact_nt = torch.expm1(-inside_nt) + inside_nt + math.expm1(limit) * (-limit - gap_nt).clamp(min=0)
        below = SERIES_BELOW.get(gap_nt.dtype, 0.1)
        small_nt = gap_nt.clamp(-below, below)
        series_nt = small_nt.square() * (0.5 - small_nt * (1 / 6 - small_nt * (1 / 24 - small_nt / 120)))
        return torch.where(gap_nt.detach().abs() < below, series_nt, exact_nt)
    raise ValueError(f"unknown KL estimator {name!r}; choose one of {', '.join(get_args(Estimator))}")
