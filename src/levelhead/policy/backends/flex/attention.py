"""Attention over a forest of prefix trees: one compiled kernel on CUDA, the same blocks in plain torch elsewhere.

On CUDA it is torch's flex attention (Dong et al. 2024), compiled once a bucket of lengths.  It has no backward pass on
a CPU.  There the same lists of blocks are walked by plain operators, which is slow and computes the same: what a GPU is
given, every list of blocks and every single pair, is tested where there is none.

A forest lies flat in depth-first order, so that the descendants of a token are one contiguous range behind it.  With
``end[j]`` the end of that range, token ``i`` looks at token ``j`` exactly where ``j <= i < end[j]``; a layer with a
sliding window asks also that their depths differ by less than the window.  Two numbers a token are the whole mask.

The kernel wants to know which blocks of 128 x 128 pairs it may skip, and which need no mask.  The smallest and largest
``end`` of a block of keys tell that exactly, so that no matrix of pairs is ever made: what grows with the square are
the numbers of blocks: four lists of 4 bytes for 16,384 pairs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from levelhead.policy.backends.trees import RowOfTrees
from levelhead.policy.packing import Node

BLOCK = 128
"""Tokens of a block."""

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Whether a query looks at a key, of the indices of batch, head, query and key."""


def bucket(tokens: int, block: int = BLOCK) -> int:
    """Length that a row of so many tokens is padded to inside attention.

    128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, ...: powers of two, and one and a half times them.  Each length
    is compiled once; two an octave keep that to a dozen compilations for rows up to 8,192 tokens.
    """
    size = block
    while size < tokens:
        if size > block and size // 2 * 3 >= tokens:
            return size // 2 * 3
        size *= 2
    return size


def subtree_ends(nodes: Sequence[Node], length: int) -> Tensor:
    """(length,) position behind the last descendant of each token, int32; padding has none but itself.

    Args:
        nodes: That cover a row from its first token on.
        length: Of the row and the padding behind it.
    """
    ordered = sorted(nodes, key=lambda node: node.start)
    counts = torch.tensor([node.stop - node.start for node in ordered])
    ends = torch.tensor([node.end for node in ordered], dtype=torch.int32).repeat_interleave(counts)
    return torch.cat([ends, torch.arange(len(ends) + 1, length + 1, dtype=torch.int32)])


def looks_at(end: Tensor, depth: Tensor, window: int | None) -> MaskMod:
    """The mask of single pairs.

    Args:
        end: (t,) see :func:`subtree_ends`.
        depth: (t,) of each token in its tree.
        window: How many tokens a token sees at most, itself included; ``None`` for all.
    """

    def all_ancestors(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < end[key])

    if window is None:
        return all_ancestors
    width = window

    def near_ancestors(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < end[key]) & (depth[query] - depth[key] < width)

    return near_ancestors


def tree_mask(end: Tensor, depth: Tensor, window: int | None = None, block: int = BLOCK) -> BlockMask:
    """The mask of a forest as the kernel reads it, made where the tensors lie, without waiting for them.

    Args:
        end: (t,) see :func:`subtree_ends`; t is a multiple of the block.
        depth: (t,) of each token in its tree.
        window: How many tokens a token sees at most, itself included; ``None`` for all.
        block: Tokens of a block.
    """
    length = len(end)
    number = torch.arange(length // block, device=end.device)
    ends, depths = end.view(-1, block), depth.view(-1, block)
    first, last = number * block, (number + 1) * block - 1
    before = number[None] < number[:, None]  # (queries, keys)
    some = before & (first[:, None] < ends.amax(1)[None])
    every = before & (last[:, None] < ends.amin(1)[None])
    if window is not None:
        shallow, deep = depths.amin(1), depths.amax(1)
        some &= shallow[:, None] - deep[None] < window
        every &= deep[:, None] - shallow[None] < window
    full = some & every
    partial = (some & ~every) | (number[None] == number[:, None])
    (kv_num, kv), (full_kv_num, full_kv) = _listed(partial), _listed(full)
    (q_num, q), (full_q_num, full_q) = _listed(partial.T), _listed(full.T)
    return BlockMask(
        seq_lengths=(length, length),
        kv_num_blocks=kv_num,
        kv_indices=kv,
        full_kv_num_blocks=full_kv_num,
        full_kv_indices=full_kv,
        q_num_blocks=q_num,
        q_indices=q,
        full_q_num_blocks=full_q_num,
        full_q_indices=full_q,
        BLOCK_SIZE=(block, block),
        mask_mod=looks_at(end, depth, window),
    )


class Masks:
    """The masks of one flat row: one for each width of window, made when a layer first asks for it.

    Args:
        nodes: That cover the row.
        depth: (t,) of each token, where the model lies.
        windows: Tokens that each layer looks back, ``None`` for all.
        block: Tokens of a block.
    """

    def __init__(self, nodes: Sequence[Node], depth: Tensor, windows: Sequence[int | None], block: int = BLOCK) -> None:
        length = bucket(len(depth), block)
        self.windows = tuple(windows)
        self.padding = length - len(depth)
        """Tokens behind the row, which nothing looks at."""
        self._block = block
        self._end = subtree_ends(nodes, length).to(depth.device, non_blocking=True)
        self._depth = torch.nn.functional.pad(depth, (0, self.padding)).int()
        self._by_window: dict[int | None, BlockMask] = {}

    def of(self, layer: int) -> BlockMask:
        """The mask of a layer; all layers of one window have the same."""
        window = self.windows[layer]
        if window not in self._by_window:
            self._by_window[window] = tree_mask(self._end, self._depth, window, self._block)
        return self._by_window[window]


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """(1, 1, n) how many blocks each row of an (n, n) table has, and (1, 1, n, n) their numbers, then the others'."""
    count = blocks.sum(1, dtype=torch.int32)
    order = blocks.int().argsort(dim=1, descending=True, stable=True).int()
    return count[None, None], order[None, None]


_COMPILATIONS = 256
"""Compiled versions up to which a new length, type or window is compiled; above it torch raises."""

Kernel = Callable[[Tensor, Tensor, Tensor, BlockMask, float], Tensor]
"""Attention of (1, heads, t, d) queries to (1, key/value heads, t, d) keys and values, under a mask, at a scale."""


class Trees(RowOfTrees):
    """Attention over the tokens of one flat row, by a kernel that takes the whole row at once.

    Args:
        masks: Of the row.
        kernel: Computes a layer.
        keep: Whether to keep keys and values.
    """

    def __init__(self, masks: Masks, kernel: Kernel, *, keep: bool = False) -> None:
        super().__init__(keep=keep)
        self.windows = masks.windows
        self._masks, self._kernel = masks, kernel

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attend within the trees, (1, heads, t, d), by the kernel under the mask of the layer."""
        behind = (0, 0, 0, self._masks.padding)
        # Of one layout, whatever the padding: another would be compiled anew.
        queries, keys, values = (functional.pad(x, behind).contiguous() for x in self._layer(query, key, value))
        with torch.autocast(query.device.type, enabled=False):  # the kernel's own sums are float32
            return self._kernel(queries, keys, values, self._masks.of(layer), scale)[:, :, : query.shape[2]]


def fused(attention: Any, query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float) -> Tensor:
    """Call torch's flex attention, compiled or not."""
    grouped = query.shape[1] != key.shape[1]
    result: Tensor = attention(query, key, value, block_mask=mask, scale=scale, enable_gqa=grouped)
    return result


@functools.cache
def compiled() -> Kernel:
    """Return torch's flex attention, compiled anew for each length, type and window that it meets.

    It is compiled whole, so that a failure is an error: the uncompiled kernel would make a matrix of all pairs.
    """
    import torch._dynamo

    config: Any = torch._dynamo.config
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # before torch 2.7
    setattr(config, name, max(getattr(config, name), _COMPILATIONS))
    return functools.partial(fused, torch.compile(flex_attention, dynamic=False, fullgraph=True))


def by_blocks(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float) -> Tensor:
    """Walk the kernel's lists of blocks, one row of blocks after the other; differentiable.

    Single pairs are masked in partial blocks alone, as in the kernel.  Sums are float32 or better.
    """
    assert mask.full_kv_num_blocks is not None and mask.full_kv_indices is not None  # noqa: S101, PT018 - we list them
    dtype, groups, size = query.dtype, query.shape[1] // key.shape[1], mask.BLOCK_SIZE[0]
    query, key, value = (x.to(torch.promote_types(dtype, torch.float32)) for x in (query, key, value))
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    lists = [(mask.kv_num_blocks, mask.kv_indices), (mask.full_kv_num_blocks, mask.full_kv_indices)]
    inside = torch.arange(size, device=query.device)
    zero = inside[0]
    rows: list[Tensor] = []
    for row in range(query.shape[2] // size):
        tokens = inside + row * size
        blocks = [numbers[0, 0, row, : int(count[0, 0, row])] for count, numbers in lists]
        partial, full = ((block[:, None] * size + inside).flatten().long() for block in blocks)
        seen = functional.pad(mask.mask_mod(zero, zero, tokens[:, None], partial[None]), (0, len(full)), value=True)
        keys = torch.cat([partial, full])
        scores = (query[:, :, tokens] @ key[:, :, keys].mT * scale).masked_fill(~seen, -torch.inf)
        rows.append(scores.softmax(-1) @ value[:, :, keys])
    return torch.cat(rows, 2).to(dtype)
