"""Log-probability and entropy of given tokens from hidden states, without the logits ever existing in full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BLOCK_ELEMENTS = {"cpu": 1 << 20, "other": 1 << 24}
"""Logits held at once: 4 MiB in float32 on a CPU, where the passes over them then stay in its cache; else 64 MiB."""

_ROWS = {"cpu": 1024, "other": 8192}
"""Tokens of a block at most."""

STORED_ELEMENTS = {"cpu": 1 << 23, "other": 0}
"""Logits kept for the backward pass, which computes the rest again: 32 MiB in float32 on a CPU."""


def token_statistics(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    scale: float = 1.0,
    block_elements: int | None = None,
    stored_elements: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of its distribution, p = softmax(z / temperature).

    ``z = cap(scale * (hidden @ weight.T + bias))`` is computed in blocks of tokens and of the vocabulary, forward and
    again in the backward pass, so that memory grows with a block and not with tokens times vocabulary; the first
    blocks are kept, up to a bound, instead of computed again.  The softmax runs over the blocks online (Milakov and
    Gimelshein 2018).  Sums run in float32 or better.
    Both outputs are differentiable: with p the distribution and H its entropy,
    ``d logp_y / dz = (1_y - p) / T`` and ``dH / dz = -p (log p + H) / T``; where nothing depends on the entropies, its
    part costs nothing.

    Args:
        hidden: (m, d) hidden states that predict the targets.
        weight: (v, d) output embedding.
        targets: (m,) token ids.
        bias: (v,) output bias.
        temperature: Positive; the logits are divided by it.
        softcap: ``softcap * tanh(z / softcap)`` is applied to the logits (Gemma 2).
        scale: Factor on the logits (Cohere, Granite).
        block_elements: Logits computed at once; by device unless given.
        stored_elements: Logits kept at most; by device unless given.

    Returns:
        (m,) log-probabilities and (m,) entropies in nats, float32 or better.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive to score tokens, got {temperature}")
    blocks = block_shape(len(targets), hidden.device.type, elements=block_elements, stored=stored_elements)
    trained = torch.is_grad_enabled() and softcap is None  # of capped logits the slope would have to be kept as well
    shape = _Shape(temperature, softcap, scale, blocks.rows, blocks.columns, blocks.stored if trained else 0)
    result: tuple[Tensor, Tensor] = _TokenStatistics.apply(hidden, weight, bias, targets, shape)  # type: ignore[no-untyped-call]
    return result


@dataclass(frozen=True, slots=True)
class Blocks:
    """Size of the blocks that logits are computed in.

    Attributes:
        rows: Tokens of a block.
        columns: Entries of the vocabulary in a block.
        stored: Logits that are stored for the backward pass at most.
    """

    rows: int
    columns: int
    stored: int


def block_shape(tokens: int, device: str, *, elements: int | None = None, stored: int | None = None) -> Blocks:
    """Return the size of the blocks in which the logits of so many tokens are computed.

    Args:
        tokens: Whose log-probabilities are asked for.
        device: Type of the device, as ``cpu`` or ``cuda``.
        elements: Logits computed at once; by device unless given.
        stored: Logits kept at most; by device unless given.
    """
    kind = "cpu" if device == "cpu" else "other"
    size = BLOCK_ELEMENTS[kind] if elements is None else elements
    rows = max(1, min(tokens, _ROWS[kind], size))
    return Blocks(rows, max(1, size // rows), STORED_ELEMENTS[kind] if stored is None else stored)


@dataclass(frozen=True, slots=True)
class _Shape:
    """What is done to the logits, and the size of a block of them."""

    temperature: float
    softcap: float | None
    scale: float
    rows: int
    columns: int
    stored: int

    @property
    def factor(self) -> float:
        """On logits and gradients, where no soft cap stands between scale and temperature."""
        return self.scale / self.temperature


def _precise(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _blocks(total: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


class _Scratch:
    """Memory that block after block is computed in: fresh memory would be handed out page by page each time."""

    def __init__(self, hidden: Tensor, shape: _Shape) -> None:
        self._memory = hidden.new_empty(shape.rows * shape.columns)

    def like(self, rows: int, columns: int) -> Tensor:
        """The first rows times columns of the memory, as (rows, columns); what it held is overwritten."""
        return self._memory[: rows * columns].view(rows, columns)


def _logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, shape: _Shape, scratch: _Scratch | None
) -> tuple[Tensor, Tensor | None]:
    """Tempered logits of a block in float32 or better, and the derivative of the soft cap where there is one.

    They lie in memory of their own if no scratch is given.
    """
    # Autocast does not know of results that are given.
    if scratch is None or torch.is_autocast_enabled(hidden.device.type):
        logits = hidden @ weight.T
    else:
        logits = torch.mm(hidden, weight.T, out=scratch.like(len(hidden), len(weight)))
    logits = logits.to(_precise(logits))
    if bias is not None:
        logits += bias.to(logits.dtype)
    if shape.softcap is None:
        return (logits if shape.factor == 1.0 else logits.mul_(shape.factor)), None
    capped = logits.mul_(shape.scale / shape.softcap).tanh_()
    return capped * (shape.softcap / shape.temperature), 1 - capped * capped


def _inside(targets: Tensor, columns: slice, width: int) -> tuple[Tensor, Tensor]:
    """(n,) which targets lie in a block of the vocabulary, and (n, 1) where in it, some column for the others.

    Nothing is counted, so that a GPU is not waited for.
    """
    where = targets - columns.start
    return (where >= 0) & (where < width), where.clamp(0, width - 1)[:, None]


class _TokenStatistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, shape: _Shape
    ) -> tuple[Tensor, Tensor]:
        logp = torch.empty(len(targets), dtype=_precise(hidden), device=hidden.device)
        entropy, normalizer = torch.empty_like(logp), torch.empty_like(logp)
        projection = weight.to(hidden.dtype)
        scratch, other = _Scratch(hidden, shape), _Scratch(logp, shape)
        stored: list[Tensor] = []
        room = shape.stored if any(ctx.needs_input_grad) else 0
        for rows in _blocks(len(targets), shape.rows):
            top = mass = moment = drawn = logp.new_zeros(0)
            for columns in _blocks(len(weight), shape.columns):
                part = None if bias is None else bias[columns]
                size = len(targets[rows]) * len(projection[columns])
                own = size <= room
                room = room - size if own else 0
                logits, _ = _logits(hidden[rows], projection[columns], part, shape, None if own else scratch)
                high = logits.amax(-1)
                if not columns.start:
                    top, drawn = high, torch.empty_like(high)
                    mass, moment = torch.zeros_like(high), torch.zeros_like(high)
                inside, where = _inside(targets[rows], columns, logits.shape[1])
                drawn = torch.where(inside, logits.gather(1, where)[:, 0], drawn)
                higher = torch.maximum(top, high)
                shift = top - higher
                # mass = sum exp(z - top), moment = sum (z - top) exp(z - top), both moved to the higher top.
                moment = shift.exp() * (moment + mass * shift)
                mass = shift.exp() * mass
                top = higher
                odds = torch.exp(logits.sub_(top[:, None]), out=other.like(*logits.shape))
                mass += odds.sum(-1)
                moment += odds.mul_(logits).sum(-1)
                if own:
                    stored += [logits, top]
            normalizer[rows] = top + mass.log()
            logp[rows] = (drawn - top) - mass.log()
            entropy[rows] = mass.log() - moment / mass
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, bias, targets, normalizer, entropy, *stored)
        ctx.shape = shape
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, normalizer, entropy, *stored = ctx.saved_tensors
        shape: _Shape = ctx.shape
        grad_logp, grad_entropy = grads
        if grad_logp is None:
            grad_logp = torch.zeros_like(normalizer)
        projection = weight.to(hidden.dtype)
        scratch, other = _Scratch(hidden, shape), _Scratch(normalizer, shape)
        blocks = iter(zip(stored[::2], stored[1::2], strict=True))
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        fresh = torch.empty_like if len(targets) else torch.zeros_like
        grad_hidden = fresh(hidden, dtype=_precise(hidden)) if needs_hidden else None
        grad_weight = fresh(weight, dtype=_precise(weight)) if needs_weight else None
        grad_bias = torch.zeros_like(bias, dtype=_precise(bias)) if needs_bias and bias is not None else None
        for rows in _blocks(len(targets), shape.rows):
            for columns in _blocks(len(weight), shape.columns):
                part = None if bias is None else bias[columns]
                block = next(blocks, None)
                if block is None:
                    logits, slope = _logits(hidden[rows], projection[columns], part, shape, scratch)
                    logprobs = logits.sub_(normalizer[rows, None])
                else:
                    (logits, top), slope = block, None
                    logprobs = torch.sub(logits, (normalizer[rows] - top)[:, None], out=other.like(*logits.shape))
                if grad_entropy is None:
                    grad = logprobs.exp_().mul_(-grad_logp[rows, None])
                else:
                    pull = (logprobs + entropy[rows, None]).mul_(grad_entropy[rows, None]).add_(grad_logp[rows, None])
                    grad = logprobs.exp_().mul_(pull).neg_()
                inside, where = _inside(targets[rows], columns, grad.shape[1])
                grad.scatter_(1, where, grad.gather(1, where) + torch.where(inside, grad_logp[rows], 0.0)[:, None])
                if slope is not None:
                    grad *= slope
                cast = grad.to(hidden.dtype)
                if grad_hidden is not None:
                    _add_product(grad_hidden[rows], cast, projection[columns], first=not columns.start)
                if grad_weight is not None:
                    _add_product(grad_weight[columns], cast.T, hidden[rows], first=not rows.start)
                if grad_bias is not None:
                    grad_bias[columns] += grad.sum(0)
        whole = [(grad_hidden, hidden), (grad_weight, weight), (grad_bias, bias)]
        if shape.factor != 1.0:
            for total, _ in whole:
                if total is not None:
                    total.mul_(shape.factor)
        return (*(None if total is None else total.to(of.dtype) for total, of in whole), None, None)


def _add_product(total: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """Add ``a @ b`` to a total of the same or a better precision, in place; the first one fills it."""
    if total.dtype != a.dtype:
        total.copy_(a @ b) if first else total.add_(a @ b)
    elif first:
        torch.mm(a, b, out=total)
    else:
        total.addmm_(a, b)
