"""Weights of the task gradients, from their Gramian alone.

A merged gradient is ``sum_i w_i g_i``; every aggregator here finds ``w`` from the m x m matrix of inner products
``G_ij = g_i . g_j``, in float64 on the CPU, whatever the size of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Aggregator:
    """How weights are found, and the scale they come in.

    Attributes:
        solve: Gramian of tasks with a gradient, and c, to weights, shape (m,).
        scale: ``sum`` if equal gradients ``g`` merge to ``m g``, ``mean`` if to ``g`` (CAGrad: ``(1 + c) g``).
    """

    solve: Callable[[Tensor, float], Tensor]
    scale: str


def _sum(gramian_mm: Tensor, c: float) -> Tensor:  # noqa: ARG001
    return torch.ones(len(gramian_mm), dtype=gramian_mm.dtype)


def _mean(gramian_mm: Tensor, c: float) -> Tensor:  # noqa: ARG001
    return torch.full((len(gramian_mm),), 1 / len(gramian_mm), dtype=gramian_mm.dtype)


def _cagrad(gramian_mm: Tensor, c: float) -> Tensor:
    """``d = g0 + c |g0| g_w / |g_w|``, w on the simplex minimising ``g_w . g0 + c |g0| |g_w|`` (Liu et al. 2021)."""
    mean_m = _mean(gramian_mm, c)
    radius = c * math.sqrt(max(float(mean_m @ gramian_mm @ mean_m), 0.0))
    if radius == 0.0:
        return mean_m
    w_m = _cagrad_pair(gramian_mm, radius)
    norm = math.sqrt(max(float(w_m @ gramian_mm @ w_m), 0.0))
    if norm <= 1e-12 * math.sqrt(float(gramian_mm.diagonal().max())):
        return mean_m
    return mean_m + radius / norm * w_m


def _cagrad_pair(gramian_mm: Tensor, radius: float) -> Tensor:
    """Solve CAGrad's inner problem for two tasks in closed form, by setting the derivative in ``w_1`` to zero."""
    a, b, d = float(gramian_mm[0, 0]), float(gramian_mm[0, 1]), float(gramian_mm[1, 1])
    spread = a - 2 * b + d
    slope = (a - d) / 2 / radius
    if spread <= 0:
        w = 0.5
    elif slope * slope >= spread:
        w = 0.0 if slope > 0 else 1.0
    else:
        w = ((d - b) - slope * math.sqrt(max(a * d - b * b, 0.0) / (spread - slope * slope))) / spread
    w = min(max(w, 0.0), 1.0)
    return torch.tensor([w, 1 - w], dtype=gramian_mm.dtype)


AGGREGATORS = {
    "sum": Aggregator(_sum, "sum"),
    "mean": Aggregator(_mean, "mean"),
    "cagrad": Aggregator(_cagrad, "mean"),
}


def weights(name: str, gramian_mm: Tensor, *, c: float = 0.4) -> Tensor:
    """Return the weights of the task gradients, shape (m,), in the Gramian's dtype and device.

    A task whose gradient is zero gets no weight, and the others are merged as if it were not there (times
    ``live / m`` where the aggregator is on the mean's scale, so that CAGrad's ball stays around the mean of all).
    ``sum`` and ``mean`` weigh every task the same.  One task alone is returned as it is.

    Args:
        name: One of ``AGGREGATORS``.
        gramian_mm: Inner products of the task gradients, symmetric, shape (m, m).
        c: CAGrad's radius, in [0, 1).

    Raises:
        ValueError: If the name is unknown, c is out of range, or the Gramian is not a finite square matrix.
    """
    if name not in AGGREGATORS:
        raise ValueError(f"unknown aggregator {name!r}; choose one of {', '.join(AGGREGATORS)}")
    if gramian_mm.ndim != 2 or gramian_mm.shape[0] != gramian_mm.shape[1] or len(gramian_mm) == 0:
        raise ValueError(f"a Gramian has shape (m, m), got {tuple(gramian_mm.shape)}")
    if not 0 <= c < 1:
        raise ValueError(f"c must be in [0, 1), got {c}")
    matrix = gramian_mm.detach().to("cpu", torch.float64)
    if not bool(torch.isfinite(matrix).all()):
        raise ValueError("the Gramian of the task gradients is not finite")
    aggregator = AGGREGATORS[name]
    m = len(matrix)
    squares_m = matrix.diagonal()
    live_m = squares_m > 1e-24 * squares_m.max()
    live = int(live_m.sum())
    if name in ("sum", "mean") or live == 0:
        result = aggregator.solve(matrix, c) if name in ("sum", "mean") else torch.zeros(m, dtype=torch.float64)
    else:
        found = torch.ones(1, dtype=torch.float64) if live == 1 else aggregator.solve(matrix[live_m][:, live_m], c)
        result = torch.zeros(m, dtype=torch.float64)
        result[live_m] = found * (live / m if aggregator.scale == "mean" else 1.0)
    return result.to(gramian_mm.device, gramian_mm.dtype)
