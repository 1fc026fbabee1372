"""Weights of the task gradients, from their Gramian alone.

A merged gradient is ``sum_i w_i g_i``; every aggregator here finds ``w`` from the m x m matrix of inner products
``G_ij = g_i . g_j``, in float64 on the CPU, whatever the size of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from levelhead.objective.surgery.solvers import aligned_mtl, cagrad, mgda, pcgrad, upgrad


@dataclass(frozen=True, slots=True)
class Aggregator:
    """How weights are found, and the scale they come in.

    Attributes:
        solve: Gramian of the tasks that have a gradient, c, and a generator, to weights, shape (m,).
        scale: ``sum`` if m equal gradients g merge to ``m g``, ``mean`` if to g (CAGrad: ``(1 + c) g``).
    """

    solve: Callable[[Tensor, float, torch.Generator | None], Tensor]
    scale: Literal["sum", "mean"]


def _ones(gramian_mm: Tensor) -> Tensor:
    return torch.ones(len(gramian_mm), dtype=gramian_mm.dtype)


AGGREGATORS: Mapping[str, Aggregator] = {
    "sum": Aggregator(lambda g, _c, _r: _ones(g), "sum"),
    "mean": Aggregator(lambda g, _c, _r: _ones(g) / len(g), "mean"),
    "cagrad": Aggregator(lambda g, c, _r: cagrad(g, c), "mean"),
    "pcgrad": Aggregator(lambda g, _c, rng: pcgrad(g, rng), "sum"),
    "upgrad": Aggregator(lambda g, _c, _r: upgrad(g), "mean"),
    "mgda": Aggregator(lambda g, _c, _r: mgda(g), "mean"),
    "aligned_mtl": Aggregator(lambda g, _c, _r: aligned_mtl(g), "mean"),
}
"""Aggregators by name."""

LINEAR = frozenset({"sum", "mean"})
"""Aggregators that weigh every task the same, whatever its gradient."""


def weights(name: str, gramian_mm: Tensor, *, c: float = 0.4, generator: torch.Generator | None = None) -> Tensor:
    """Return the weights of the task gradients, shape (m,), in the Gramian's dtype and device.

    A task whose gradient is zero (below 1e-12 of the largest) gets weight 0 and the others are merged as if it were
    not there, times ``live / m`` where the aggregator is on the mean's scale, so that CAGrad's ball stays around the
    mean of all.  ``sum`` and ``mean`` weigh every task the same.  One task alone is returned as it is.

    Args:
        name: One of ``AGGREGATORS``.
        gramian_mm: Inner products of the task gradients, symmetric, shape (m, m).
        c: CAGrad's radius, in [0, 1).
        generator: Source of PCGrad's random order for three tasks or more.

    Raises:
        ValueError: If the name is unknown, c is out of range, a generator is missing, or the Gramian is not a finite
            symmetric matrix.
    """
    if name not in AGGREGATORS:
        raise ValueError(f"unknown aggregator {name!r}; choose one of {', '.join(AGGREGATORS)}")
    if not 0 <= c < 1:
        raise ValueError(f"c must be in [0, 1), got {c}")
    matrix = _checked(gramian_mm)
    aggregator = AGGREGATORS[name]
    if name in LINEAR:
        return aggregator.solve(matrix, c, generator).to(gramian_mm.device, gramian_mm.dtype)
    m = len(matrix)
    squares_m = matrix.diagonal()
    live_m = squares_m > 1e-24 * squares_m.max()
    live = int(live_m.sum())
    result = torch.zeros(m, dtype=matrix.dtype)
    if live > 0:
        unit = matrix[live_m][:, live_m] / squares_m.max()
        found = _ones(unit) if live == 1 else aggregator.solve(unit, c, generator)
        result[live_m] = found * (live / m if aggregator.scale == "mean" else 1.0)
    return result.to(gramian_mm.device, gramian_mm.dtype)


def _checked(gramian_mm: Tensor) -> Tensor:
    """Return the Gramian as a float64 matrix on the CPU, symmetric to the last bit."""
    if gramian_mm.ndim != 2 or gramian_mm.shape[0] != gramian_mm.shape[1] or len(gramian_mm) == 0:
        raise ValueError(f"a Gramian has shape (m, m), got {tuple(gramian_mm.shape)}")
    matrix = gramian_mm.detach().to("cpu", torch.float64)
    if not bool(torch.isfinite(matrix).all()):
        raise ValueError("the Gramian of the task gradients is not finite")
    scale = float(matrix.diagonal().max())
    if scale < 0 or float((matrix - matrix.T).abs().max()) > 1e-4 * scale:
        raise ValueError("a Gramian is symmetric with a diagonal that is not negative")
    return (matrix + matrix.T) / 2
