"""An exponential that stays finite, and sums that lose no digit; no torch is imported before it is needed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LIMIT = 20.0
"""Exponents above this are continued by the tangent; ``exp(20)`` is 4.9e8."""


def bounded_exp(exponent: Tensor, limit: float = LIMIT) -> Tensor:
    """Return ``exp(x)`` up to ``limit`` and its tangent line beyond, any shape.

    The value and the gradient stay finite and keep their direction, where a clamp would cut the gradient to zero: a
    policy that has strayed far would no longer be pulled back.  :func:`beyond` tells where it happened.
    """
    return exponent.clamp(max=limit).exp() + math.exp(limit) * (exponent - limit).clamp(min=0)


def beyond(exponent: Tensor, limit: float = LIMIT) -> Tensor:
    """Return where :func:`bounded_exp` is not the exponential, a boolean tensor."""
    return exponent.detach() > limit


def masked_mean(values_nt: Tensor, mask_nt: Tensor) -> Tensor:
    """Return the mean of ``values_nt`` over the true positions of ``mask_nt``, detached, a float32 scalar."""
    return values_nt.detach()[mask_nt].float().mean()


def local(tensor: Tensor) -> Tensor:
    """Return the piece of a sharded tensor (a ``DTensor``) that this process holds, detached; else the tensor itself.

    The piece shares its storage with the tensor.  Sums over entries are then sums over pieces, to be added up over the
    processes.
    """
    if not hasattr(tensor, "to_local"):
        return tensor
    import torch

    with torch.no_grad():
        piece: Tensor = getattr(tensor, "to_local")()  # noqa: B009 - only a DTensor has it
    return piece


def dot(a: Tensor, b: Tensor, *, chunk: int = 1 << 26) -> float:
    """Return the inner product of two tensors of one shape, in float32 or better, added up in float64.

    Half-precision tensors are converted a chunk at a time, so no second copy of a large gradient is made.  Of sharded
    tensors it is the share of this process.
    """
    import torch

    a, b = local(a), local(b)
    dtype = torch.promote_types(a.dtype, torch.float32)
    pairs = zip(a.detach().reshape(-1).split(chunk), b.detach().reshape(-1).split(chunk), strict=True)
    products = [torch.dot(x.to(dtype), y.to(dtype)) for x, y in pairs]
    return math.fsum(float(product) for product in products)
