"""Attention over a forest of token sequences that share prefixes, piece by piece, without a mask.

A forest is a flat list of tokens in depth-first order, cut into nodes: runs of tokens without a branch.  A token
looks at the tokens before it in its own node and at every token of the nodes above.  In depth-first order all
descendants of a node are one contiguous range behind it, so that the whole attention is

- one causal piece a node, on its own tokens, and
- one unmasked piece a node with descendants: their queries, its keys.

Each piece is one call of the fused kernel, which also gives the logarithm of its softmax's denominator; outputs of
pieces merge exactly by it (Milakov and Gimelshein 2018), and the backward pass of a piece needs no more than the merged
output and denominator (Dao et al. 2022, algorithm 4).  No pair of tokens is computed that does not attend.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from levelhead.policy.backends.trees import RowOfTrees
from levelhead.policy.packing import Node


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of an attention.

    Attributes:
        causal: (start, length, count): that many nodes of one length, one behind the other.
        full: (first query, behind the last, first key, behind the last).
    """

    causal: tuple[tuple[int, int, int], ...]
    full: tuple[tuple[int, int, int, int], ...]

    @classmethod
    def of(cls, nodes: Sequence[Node], needed: Sequence[int] | None = None) -> Pieces:
        """Cut the attention over nodes into pieces.

        Args:
            nodes: In any order.
            needed: First position in each node, in order of their start, from which on outputs matter; the node's stop
                where none of its own do.
        """
        causal: list[tuple[int, int, int]] = []
        full: list[tuple[int, int, int, int]] = []
        ordered = sorted(nodes, key=lambda node: node.start)
        for index, node in enumerate(ordered):
            first = node.start if needed is None else needed[index]
            length = node.stop - first
            if length:
                start, size, count = causal[-1] if causal else (0, 0, 0)
                if size == length and start + size * count == first:
                    causal[-1] = (start, size, count + 1)
                else:
                    causal.append((first, length, 1))
            if node.start < first < node.stop:
                full.append((first, node.stop, node.start, first))
            if node.end > node.stop:
                full.append((node.stop, node.end, node.start, node.stop))
        return cls(tuple(causal), tuple(full))


class Forest(RowOfTrees):
    """Attention over the tokens of one flat row, piece by piece.

    Args:
        nodes: That cover the row.
        layers: Of the model.
        needed: (n,) ascending positions of the row whose last hidden state is asked for; others may come out of the
            last layer as anything.
        keep: Whether to keep keys and values.
    """

    def __init__(self, nodes: Sequence[Node], layers: int, needed: Tensor, *, keep: bool = False) -> None:
        super().__init__(keep=keep)
        ordered = sorted(nodes, key=lambda node: node.start)
        starts = torch.searchsorted(needed, torch.tensor([node.start for node in ordered], device=needed.device))
        firsts = torch.cat([needed, needed.new_full((1,), ordered[-1].stop)])[starts].tolist()
        self.needed = needed
        self._last = layers - 1
        self._all = Pieces.of(ordered)
        self._trimmed = Pieces.of(ordered, [min(a, n.stop) for a, n in zip(firsts, ordered, strict=True)])

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attend within the trees, (1, heads, t, d); in the last layer only where a needed position is read."""
        return attend(*self._layer(query, key, value), self._trimmed if layer == self._last else self._all, scale)


def attend(query: Tensor, key: Tensor, value: Tensor, pieces: Pieces, scale: float) -> Tensor:
    """Differentiable attention of one row, piece by piece.

    Args:
        query: (1, heads, t, d).
        key: (1, key/value heads, t, d); heads are a multiple.
        value: As the keys.
        pieces: Which queries look at which keys.
        scale: On the products.

    Returns:
        (1, heads, t, d); 0 for queries that are in no piece.
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    # Torch's backward kernel is several times slower in bf16 than in float32.
    dtype, exact = query.dtype, torch.promote_types(query.dtype, torch.float32)
    query, key, value = query.to(exact), key.to(exact), value.to(exact)
    result: Tensor = _PieceAttention.apply(query, key, value, pieces, scale)  # type: ignore[no-untyped-call]
    return result.to(dtype)


@functools.cache
def kernels() -> tuple[Any, Any]:
    """Torch's fused attention for a CPU, forward and backward.

    Raises:
        AttributeError: This torch has no such operators; they are none of those that it promises to keep.
    """
    names = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward")
    forward, backward = (getattr(torch.ops.aten, name).default for name in names)
    return forward, backward


def fused(
    query: Tensor, key: Tensor, value: Tensor, scale: float, *, causal: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(b, heads, q, d) attention and (b, heads, q) logarithm of its denominator, from the fused CPU kernel.

    ``mask`` is added to the scaled products, and broadcast.
    """
    bias = None if mask is None else mask.to(query.dtype)
    both: tuple[Tensor, Tensor] = kernels()[0](query, key, value, 0.0, causal, attn_mask=bias, scale=scale)
    return both


def merge(out: Tensor, log: Tensor, other: Tensor, other_log: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two sets of keys from the attention over each, and the logarithm of its denominator."""
    whole = torch.logaddexp(log, other_log)
    first, second = (log - whole).exp()[..., None], (other_log - whole).exp()[..., None]
    return (out * first + other * second).to(out.dtype), whole


def _stacked(tensor: Tensor, piece: tuple[int, int, int]) -> Tensor:
    """The (count, heads, length, d) tokens of several nodes, as a view of (1, heads, t, d)."""
    start, length, count = piece
    tokens: Tensor = tensor[0, :, start : start + length * count]
    return tokens.view(tokens.shape[0], count, length, tokens.shape[2]).transpose(0, 1)


class _PieceAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, pieces: Pieces, scale: float) -> Tensor:
        heads, length = query.shape[1], query.shape[2]
        # Tokens first: what follows in the model reads the heads of a token one after the other.
        out = query.new_zeros((1, length, heads, value.shape[-1])).transpose(1, 2)
        log = query.new_full((1, heads, length), -torch.inf, dtype=torch.promote_types(query.dtype, torch.float32))
        for piece in pieces.causal:
            queries, keys, values = (_stacked(x, piece) for x in (query, key, value))
            part, part_log = fused(queries, keys, values, scale, causal=True)
            _stacked(out, piece).copy_(part)
            _stacked(log[..., None], piece)[..., 0].copy_(part_log)
        for a, b, c, d in pieces.full:
            part, part_log = fused(query[:, :, a:b], key[:, :, c:d], value[:, :, c:d], scale)
            out[:, :, a:b], log[:, :, a:b] = merge(out[:, :, a:b], log[:, :, a:b], part, part_log)
        ctx.save_for_backward(query, key, value, out, log)
        ctx.pieces, ctx.scale = pieces, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        query, key, value, out, log = ctx.saved_tensors
        flash_backward = kernels()[1]
        gradients = [torch.zeros_like(x) for x in (query, key, value)]
        for piece in ctx.pieces.causal:
            pieces = [_stacked(x, piece) for x in (grad, query, key, value, out)]
            part_log = _stacked(log[..., None], piece)[..., 0]
            parts = flash_backward(*pieces, part_log, 0.0, True, scale=ctx.scale)
            for whole, part in zip(gradients, parts, strict=True):
                _stacked(whole, piece).copy_(part)
        for a, b, c, d in ctx.pieces.full:
            at, to = slice(a, b), slice(c, d)
            parts = flash_backward(
                grad[:, :, at], query[:, :, at], key[:, :, to], value[:, :, to], out[:, :, at], log[:, :, at],
                0.0, False, scale=ctx.scale,
            )  # fmt: skip
            for whole, part, where in zip(gradients, parts, (at, to, to), strict=True):
                whole[:, :, where] += part
        return (*gradients, None, None)
