"""Attention over a forest of prefix trees: one compiled kernel on CUDA, the same blocks in plain torch elsewhere.

On CUDA it is torch's flex attention (Dong et al. 2024), compiled once a bucket of lengths.  It has no backward pass on
a CPU.  There the same lists of blocks are walked by plain operators, which is slow and computes the same: what a GPU is
given, every list of blocks and every single pair, is tested where there is none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from levelhead.policy.backends.flex.mask import Masks
from levelhead.policy.backends.trees import RowOfTrees

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
