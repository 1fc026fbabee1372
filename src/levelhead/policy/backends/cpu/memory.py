"""Keys and values while decoding: a prompt's once for all of its rows, and each row's own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from levelhead.policy.backends.cpu.attention import Forest, fused

Pair = tuple[Tensor, Tensor]
"""Keys and values."""


class PrefixCache:
    """Keys and values of prompts, one copy each, and of what each row has sampled.

    A prompt's rows look at its keys as one matrix, so they have slots at it: every prompt as many as the one with most
    rows.  A slot without a row of its own repeats the prompt's first row.

    Args:
        forest: That holds the prompts' keys and values.
        paths: Row positions of each prompt's tokens.
        prompt_of: (rows,) which prompt each row has.
        budget: Tokens that a row samples at most.
    """

    def __init__(self, forest: Forest, paths: Sequence[Tensor], prompt_of: Tensor, budget: int) -> None:
        longest = max(len(path) for path in paths)
        places = torch.stack([torch.nn.functional.pad(path, (longest - len(path), 0)) for path in paths])
        # (prompts * kv, n, d) of each layer, and what rows have sampled.
        self._shared: list[Pair] = [
            (keys[0][:, places].transpose(0, 1).flatten(0, 1), values[0][:, places].transpose(0, 1).flatten(0, 1))
            for keys, values in zip(forest.keys, forest.values, strict=True)
        ]
        self._own: list[tuple[_KvBuffer, _KvBuffer]] = []
        self._heads = len(self._shared[0][0]) // len(paths)
        real = torch.tensor([[longest - len(path)] for path in paths]) <= torch.arange(longest)
        hidden = torch.zeros(real.shape).masked_fill(~real, -torch.inf).repeat_interleave(self._heads, 0)
        self._hidden = None if bool(real.all()) else hidden
        self._budget = budget
        self.length = 0
        self._prompt_of = prompt_of
        self._slots = _RowSlots(prompt_of, self._heads)

    def keep(self, rows: Tensor) -> None:
        """Let all rows go but some, and the prompts that have none left."""
        before = int(self._prompt_of.max()) + 1
        prompts, self._prompt_of = self._prompt_of[rows].unique(return_inverse=True)
        if len(prompts) < before:
            indices = (prompts[:, None] * self._heads + torch.arange(self._heads)).flatten()  # of each prompt's heads
            self._shared = [(keys[indices], values[indices]) for keys, values in self._shared]
            self._hidden = None if self._hidden is None else self._hidden[indices]
        self._slots = _RowSlots(self._prompt_of, self._heads)
        self._own = [(keys.of(rows, self.length), values.of(rows, self.length)) for keys, values in self._own]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Store a token's key and value, and attend to the prompt's and the row's own; one query a row."""
        shared = self._shared[layer]
        rows, kv_heads, _, width = key.shape
        if not query.dtype == key.dtype == value.dtype == shared[0].dtype:
            query, key, value = (x.to(shared[0].dtype) for x in (query, key, value))
        if layer == len(self._own):
            self._own.append((_KvBuffer.like(key, self._budget), _KvBuffer.like(value, self._budget)))
        keys, values = self._own[layer]
        keys.store(self.length, key)
        values.store(self.length, value)
        own = (keys.held(self.length + 1), values.held(self.length + 1))
        kernel = _products if query.dtype == torch.float32 else _fused
        attended = kernel(query.reshape(rows * kv_heads, -1, width), shared, own, scale, self._hidden, self._slots)
        return attended.view(rows, -1, 1, attended.shape[-1])


class _KvBuffer:
    """Keys or values of a layer, of what each row has sampled.

    Args:
        memory: (rows, kv, budget, d).
    """

    def __init__(self, memory: Tensor) -> None:
        self._of_rows, self._of_heads = memory, memory.flatten(0, 1)

    @classmethod
    def like(cls, new: Tensor, budget: int) -> _KvBuffer:
        """Empty, for a budget of tokens such as a first one, (rows, kv, 1, d)."""
        return cls(new.new_empty((*new.shape[:2], budget, new.shape[3])))

    def store(self, position: int, new: Tensor) -> None:
        """Take in a token, (rows, kv, 1, d)."""
        self._of_rows.narrow(2, position, 1).copy_(new)

    def held(self, length: int) -> Tensor:
        """(rows * kv, length, d)."""
        return self._of_heads.narrow(1, 0, length)

    def of(self, rows: Tensor, length: int) -> _KvBuffer:
        """The memory's beginning, which now holds what some rows have sampled."""
        held = self._of_rows[: len(rows)]
        held.narrow(2, 0, length).copy_(self._of_rows.narrow(2, 0, length).index_select(0, rows))
        return _KvBuffer(held)


class _RowSlots:
    """Where the queries of rows sit, at the keys of their prompts.

    Args:
        prompt_of: (rows,) which prompt each row has.
        heads: Key/value heads, each with slots of its own.
    """

    def __init__(self, prompt_of: Tensor, heads: int) -> None:
        counts = torch.bincount(prompt_of)
        self.each = int(counts.max())
        starts = counts.cumsum(0) - counts
        order = prompt_of.argsort(stable=True)
        slot = torch.arange(self.each)
        row = order[torch.where(slot < counts[:, None], starts[:, None] + slot, starts[:, None])]
        head = torch.arange(heads)
        # (prompts, heads, slots) rows, and (rows, heads) slots.
        self._row = (row[:, None] * heads + head[:, None]).flatten()
        place = (prompt_of[:, None] * heads + head) * self.each
        self._seat = (place + (order.argsort() - starts[prompt_of])[:, None]).flatten()

    def fill(self, x: Tensor) -> Tensor:
        """(prompts * kv, slots * n, d) of (rows * kv, n, d)."""
        return x.index_select(0, self._row).view(-1, self.each * x.shape[1], x.shape[2])

    def leave(self, x: Tensor) -> Tensor:
        """(rows * kv, n, d) of (prompts * kv, slots * n, d)."""
        return x.view(len(self._row), -1, x.shape[2]).index_select(0, self._seat)


def _products(query: Tensor, shared: Pair, own: Pair, scale: float, hidden: Tensor | None, slots: _RowSlots) -> Tensor:
    """Attention of one query a row to its prompt's keys and its own, as plain matrix products.

    The fused kernel is slower where threads share many queries that each look at little.

    Args:
        query: (rows * kv, heads / kv, d).
        shared: (prompts * kv, n, d) keys and values of the prompts.
        own: (rows * kv, t, d) those of the rows.
        scale: On the products.
        hidden: (prompts * kv, n) added to the prompts' products.
        slots: Of the rows at their prompts.

    Returns:
        (rows * kv, heads / kv, d).
    """
    keys, values = shared
    own_keys, own_values = own
    to_shared = torch.bmm(slots.fill(query), keys.mT)
    if hidden is not None:
        to_shared.add_(hidden[:, None])
    to_own = slots.fill(torch.bmm(query, own_keys.mT))
    products = torch.cat([to_shared, to_own], -1)
    weights = (products if scale == 1.0 else products.mul_(scale)).softmax(-1)
    to_shared, to_own = weights.split([keys.shape[1], own_keys.shape[1]], -1)
    return slots.leave(torch.bmm(to_shared, values)).baddbmm_(slots.leave(to_own), own_values)


def _fused(query: Tensor, shared: Pair, own: Pair, scale: float, hidden: Tensor | None, slots: _RowSlots) -> Tensor:
    """As :func:`_products`, with the fused kernel, which sums in float32 whatever the precision."""
    mask = None if hidden is None else hidden[:, None, None]
    out, log = _fused_heads(query, own, scale)
    other, other_log = _fused_heads(slots.fill(query), shared, scale, mask)
    part = torch.sigmoid(log[..., None] - slots.leave(other_log[..., None]))
    return torch.lerp(slots.leave(other).float(), out.float(), part).to(query.dtype)


def _fused_heads(query: Tensor, pair: Pair, scale: float, mask: Tensor | None = None) -> Pair:
    """Output and log of the denominator, each head as if it were a row."""
    out, log = fused(query[:, None], pair[0][:, None], pair[1][:, None], scale, mask=mask)
    return out[:, 0], log[:, 0]
