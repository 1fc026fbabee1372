"""Gradients kept beside ``p.grad``: one tensor a parameter, ``None`` where nothing has arrived."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from levelhead.objective.numerics import dot

Buffer = list[Tensor | None]


def read(params: Sequence[Tensor]) -> Buffer:
    """Return what ``p.grad`` holds, not a copy."""
    return [param.grad for param in params]


def write(params: Sequence[Tensor], buffer: Sequence[Tensor | None]) -> None:
    """Put a buffer into ``p.grad``."""
    for param, grad in zip(params, buffer, strict=True):
        param.grad = grad


@contextmanager
def lent(params: Sequence[Tensor], buffer: Buffer) -> Iterator[None]:
    """Lend ``p.grad`` to a buffer: a backward inside accumulates into it, in place, and ``p.grad`` comes back after.

    A backward into ``p.grad`` works where :func:`torch.autograd.grad` does not (reentrant checkpointing) and needs no
    second full gradient to add up micro-batches.
    """
    kept = read(params)
    write(params, buffer)
    try:
        yield
        buffer[:] = read(params)
    finally:
        write(params, kept)


def inner(a: Sequence[Tensor | None], b: Sequence[Tensor | None]) -> float:
    """Return the inner product of two buffers, ``None`` counting as zero."""
    return sum(dot(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None)


def gramian(buffers: Sequence[Buffer]) -> Tensor:
    """Return the inner products of m buffers, shape (m, m), float64 on the CPU.

    Products are taken in float32 or better, one parameter at a time; no gradient is stacked or copied whole.
    """
    result = torch.zeros(len(buffers), len(buffers), dtype=torch.float64)
    for i, a in enumerate(buffers):
        for j, b in enumerate(buffers[: i + 1]):
            result[i, j] = result[j, i] = inner(a, b)
    return result


def combine(pieces: Sequence[tuple[float, Tensor | None]]) -> Tensor | None:
    """Return the weighted sum of the tensors that exist, added in float32 or better and cast back."""
    present = [(weight, grad) for weight, grad in pieces if grad is not None]
    if not present:
        return None
    dtype = present[0][1].dtype
    total = torch.zeros_like(present[0][1], dtype=torch.promote_types(dtype, torch.float32))
    for weight, grad in present:
        total.add_(grad, alpha=weight)
    return total.to(dtype)
