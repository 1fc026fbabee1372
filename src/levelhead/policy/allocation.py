"""Tensors that a pass allocates, without their content: what counts them, and what stands in for passes that need it.

Attention over prefix trees and the output layer in blocks depend on the content of tensors.  Their stand-ins allocate
the same; of attention there is one small function a backend.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from levelhead.policy.backends.trees import unused_mask
from levelhead.policy.head import Blocks


@dataclass(frozen=True, slots=True)
class Layout:
    """Numbers of rows and tokens in a micro-batch.

    Attributes:
        rows: Sequences, or prefix trees.
        length: Tokens of each.
        tree: Whether a row is a tree of several sequences.
        targets: Completion tokens that are scored, in all.
        needed: Positions whose last hidden state predicts one of them, in all.
    """

    rows: int
    length: int
    tree: bool
    targets: int
    needed: int

    @property
    def tokens(self) -> int:
        """Tokens that pass through the model at once."""
        return self.rows * self.length


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of storages that are alive, and their highest sum, while operators run inside.

    Args:
        known: Tensors that are not counted.
    """

    def __init__(self, counted: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {tensor.untyped_storage()._cdata: 0 for tensor in counted}
        self._references: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and count what it returns."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = storage.nbytes()
        self._references[key] = weakref.ref(storage, functools.partial(self._free, key))
        self.now += self._sizes[key]
        self.peak = max(self.peak, self.now)

    def _free(self, key: int, _reference: object) -> None:
        self.now -= self._sizes.pop(key, 0)
        self._references.pop(key, None)


class _TreeAttention(torch.autograd.Function):
    """What attention over prefix trees allocates: its output, and its denominators' logarithms, which are saved."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        heads, length = query.shape[1], query.shape[2]
        out = query.new_empty((1, length, heads, value.shape[-1])).transpose(1, 2)
        log = query.new_empty((1, heads, length), dtype=torch.promote_types(query.dtype, torch.float32))
        ctx.save_for_backward(query, key, value, out, log)
        return out

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors[:3])


class _Trees:
    """Stands in for a backend's attention over prefix trees.

    Args:
        needed: Positions that the last layer is asked for; all where the backend does not leave any out.
        repeats: Whether keys and values are repeated for every query head.
        keep: Whether they are kept, layer by layer, for decoding.
    """

    def __init__(self, needed: Tensor | None, *, repeats: bool, keep: bool = False) -> None:
        self.needed = needed
        self._repeats, self._keep = repeats, keep
        self._cached: list[Tensor] = []

    def attend(self, _layer: int, query: Tensor, key: Tensor, value: Tensor, _scale: float) -> Tensor:
        if torch.is_autocast_enabled(query.device.type):
            dtype = torch.get_autocast_dtype(query.device.type)
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        if self._keep:
            self._cached += [key, value]
        groups = query.shape[1] // key.shape[1]
        if self._repeats and groups > 1:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        result: Tensor = _TreeAttention.apply(query, key, value)  # type: ignore[no-untyped-call]
        return result


def _cpu(layout: Layout, *, keep: bool = False) -> dict[str, Any]:
    """Inputs of a pass on backend ``cpu``: one flat row, keys and values of every query head, a trimmed last layer."""
    needed = torch.zeros(layout.needed, dtype=torch.long)
    return _flat(layout) | {"trees": _Trees(needed, repeats=True, keep=keep)}


def _flex(layout: Layout, *, keep: bool = False) -> dict[str, Any]:
    """Inputs of a pass on backend ``flex``: one flat row under a mask of blocks."""
    return _flat(layout) | {"trees": _Trees(None, repeats=False, keep=keep)}


def _sdpa(layout: Layout, *, keep: bool = False) -> dict[str, Any]:  # noqa: ARG001 - the cache is transformers' own
    """Inputs of a pass on backend ``sdpa``: rows of one length, trees under a dense mask."""
    shape = (layout.rows, layout.length)
    inputs: dict[str, Any] = {"input_ids": torch.zeros(shape, dtype=torch.long)}
    if layout.tree:
        mask = torch.ones((layout.rows, 1, layout.length, layout.length), dtype=torch.bool)
        inputs |= {"position_ids": torch.zeros(shape, dtype=torch.long), "attention_mask": mask}
    return inputs


def _flat(layout: Layout) -> dict[str, Any]:
    ids = torch.zeros((1, layout.tokens), dtype=torch.long)
    return {"input_ids": ids, "position_ids": ids, "attention_mask": unused_mask(ids.device)}


INPUTS: dict[str, Callable[..., dict[str, Any]]] = {"cpu": _cpu, "flex": _flex, "sdpa": _sdpa}
"""A backend's name to the inputs of its pass over a micro-batch; whoever adds a backend adds a line."""


class Statistics(torch.autograd.Function):
    """What :func:`levelhead.policy.head.token_statistics` allocates, forward and backward."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, blocks: Blocks) -> Tensor:
        """Allocate what the forward pass does, and keep what it keeps."""
        projection = weight.to(hidden.dtype)
        precise = torch.promote_types(hidden.dtype, torch.float32)
        scratch = _scratch(hidden, precise, blocks)
        room, stored = min(blocks.stored, len(hidden) * len(weight)), []
        size = blocks.rows * min(blocks.columns, len(weight))
        while size <= room:
            stored.append(hidden.new_empty(size, dtype=precise))
            room -= size
        ctx.save_for_backward(hidden, weight, *stored)
        ctx.blocks = blocks
        del projection, scratch
        return hidden.new_empty(len(hidden), dtype=precise)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Allocate what the backward pass does."""
        hidden, weight, *stored = ctx.saved_tensors
        projection = weight.to(hidden.dtype)
        precise = torch.promote_types(hidden.dtype, torch.float32)
        scratch = _scratch(hidden, precise, ctx.blocks)
        needs_hidden, needs_weight, _ = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden, dtype=precise) if needs_hidden else None
        grad_weight = torch.empty_like(weight, dtype=precise) if needs_weight else None
        del projection, scratch, stored
        both = ((grad_hidden, hidden), (grad_weight, weight))
        return (*(None if grad is None else grad.to(of.dtype) for grad, of in both), None)


def _scratch(hidden: Tensor, precise: torch.dtype, blocks: Blocks) -> list[Tensor]:
    """The memory that block after block is computed in; logits of a coarser type have a float32 copy besides."""
    size = blocks.rows * blocks.columns
    kinds = [hidden.dtype, precise] + ([precise, hidden.dtype] if hidden.dtype != precise else [])
    return [hidden.new_empty(size, dtype=kind) for kind in kinds]
