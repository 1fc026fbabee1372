"""A few entries of tensors, spread evenly: enough to tell whether weights are those of before, at no cost.

Of a weight that is divided over processes, each reads entries of its own piece.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from levelhead.objective.numerics import local

K = 8
"""Entries of each tensor that are read."""


def spread(tensor: Tensor) -> Tensor:
    """Places of K entries spread evenly over a tensor, shape (K,); a place may repeat in a small one."""
    tensor = local(tensor)
    last = max(tensor.numel() - 1, 0)
    return torch.linspace(0, last, K, dtype=torch.float64).round().to(torch.int64).to(tensor.device)


@torch.no_grad()
def read(tensors: Sequence[Tensor | None], places: Sequence[Tensor]) -> Tensor:
    """Return the entries of n tensors at their places, shape (n, K), float64 on the CPU; 0 where there is no tensor."""
    rows = [
        torch.zeros(K, device=where.device) if tensor is None else _row(local(tensor).detach(), where)
        for tensor, where in zip(tensors, places, strict=True)
    ]
    return torch.stack([row.to("cpu") for row in rows]).double() if _apart(rows) else torch.stack(rows).cpu().double()


def _row(tensor: Tensor, where: Tensor) -> Tensor:
    return tensor.reshape(-1)[where].float() if tensor.numel() else torch.zeros(K, device=where.device)


def _apart(rows: Sequence[Tensor]) -> bool:
    return len({row.device for row in rows}) > 1
