"""An exponential that stays finite."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LIMIT = 20.0
"""Exponents above this are continued by the tangent; ``exp(20)`` is 4.9e8."""


def bounded_exp(exponent: Tensor, limit: float = LIMIT) -> Tensor:
    """Return ``exp(x)`` up to ``limit`` and its tangent line beyond, any shape.

    The value and the gradient stay finite and keep their direction, where a clamp would cut the gradient to zero: a
    policy that has strayed far would no longer be pulled back.  :func:`beyond` tells where it happened.
    """
    inside = exponent.clamp(max=limit)
    return inside.exp() + math.exp(limit) * (exponent - inside)


def beyond(exponent: Tensor, limit: float = LIMIT) -> Tensor:
    """Return where :func:`bounded_exp` is not the exponential, a boolean tensor."""
    return exponent.detach() > limit


def masked_mean(values_nt: Tensor, mask_nt: Tensor) -> Tensor:
    """Return the mean of ``values_nt`` over the true positions of ``mask_nt``, detached, a float32 scalar."""
    return values_nt.detach()[mask_nt].to(torch.float32).mean()
