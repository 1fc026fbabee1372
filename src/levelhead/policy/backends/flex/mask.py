"""Which token of a forest of prefix trees looks at which, block by block.

A forest lies flat in depth-first order, so that the descendants of a token are one contiguous range behind it.  With
``end[j]`` the end of that range, token ``i`` looks at token ``j`` exactly where ``j <= i < end[j]``; a layer with a
sliding window asks also that their depths differ by less than the window.  Two numbers a token are the whole mask.

The kernel wants to know which blocks of 128 x 128 pairs it may skip, and which need no mask.  The smallest and largest
``end`` of a block of keys tell that exactly, so that no matrix of pairs is ever made: what grows with the square are
the numbers of blocks: four lists of 4 bytes for 16,384 pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

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
