"""Weights of the task gradients, from their Gramian alone, by an aggregator: in float64 on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from levelhead.objective.aggregation.aggregators import Aggregator, make_aggregator
from levelhead.objective.registry import build


def weights(
    aggregator: Aggregator | str, gramian_mm: Tensor, *, generator: torch.Generator | None = None, **settings: Any
) -> Tensor:
    """Return the weights of the task gradients, shape (m,), in the Gramian's dtype and device.

    A task whose gradient is zero (below 1e-12 of the largest) gets weight 0 and the others are merged as if it were
    not there, times ``live / m`` where the aggregator is on the mean's scale, so that CAGrad's ball stays around the
    mean of all.  ``sum`` and ``mean`` weigh every task the same.  One task alone is returned as it is.

    Args:
        aggregator: Which, or the name of one in ``AGGREGATORS``.
        gramian_mm: Inner products of the task gradients, symmetric, shape (m, m).
        generator: Source of PCGrad's random order for three tasks or more.
        **settings: Of an aggregator that is given by name; of another they take the place of its own.

    Raises:
        ValueError: If the name is unknown, a setting is out of range, a generator is missing, the Gramian is not a
            finite symmetric matrix, or the aggregator gives another number of weights.
    """
    if isinstance(aggregator, str):
        aggregator = make_aggregator(aggregator, **settings)
    elif settings:
        aggregator = build(type(aggregator), aggregator.model_dump() | settings, f"aggregator {aggregator.name}")
    matrix = _checked(gramian_mm)
    if aggregator.linear:
        return _solved(aggregator, matrix, generator).to(gramian_mm.device, gramian_mm.dtype)
    m = len(matrix)
    squares_m = matrix.diagonal()
    live_m = squares_m > 1e-24 * squares_m.max()
    live = int(live_m.sum())
    result = torch.zeros(m, dtype=matrix.dtype)
    if live > 0:
        unit = matrix[live_m][:, live_m] / squares_m.max()
        own_m = torch.ones(1, dtype=matrix.dtype) if live == 1 else _solved(aggregator, unit, generator)
        result[live_m] = own_m * (live / m if aggregator.scale == "mean" else 1.0)
    return result.to(gramian_mm.device, gramian_mm.dtype)


def _solved(aggregator: Aggregator, gramian_mm: Tensor, generator: torch.Generator | None) -> Tensor:
    weights_m = torch.as_tensor(aggregator.weights(gramian_mm, generator))
    if tuple(weights_m.shape) != (len(gramian_mm),):
        label = aggregator.name or type(aggregator).__name__
        raise ValueError(f"aggregator {label}: weights need shape ({len(gramian_mm)},), got {tuple(weights_m.shape)}")
    return weights_m.to(gramian_mm.dtype)


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
