"""Keys and values while decoding on a GPU: a prompt's once for all of its rows, and each row's own.

Every tensor keeps its shape and its place in memory until rows have left or sampled enough for the next smaller or
larger size, so that a decoding step can be captured once a size and played again: what changes from step to step (the
number of tokens sampled, the prompt of a slot, the rows of a prompt) lies in tensors, and nothing in Python.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from levelhead.policy.backends.flex.attention import bucket

SLOTS = 8
"""Rows come in this many, or powers of two and one and a half times them."""
ROOM = 64
"""Tokens that a row has room for at first; it doubles."""

Pair = tuple[Tensor, Tensor]
"""Keys and values, or an output and the logarithm of its softmax's denominator."""

_LOWEST = -1e30


class SharedCache:
    """The shared-prefix cache of a decoding, as attention reads and fills it.

    A slot is a place for a row in the model's batch; slots behind the live rows compute what nobody reads.  The queries
    of a prompt's rows look at its keys as one matrix, of as many rows a prompt as the one with most has.

    Args:
        prompts: Keys and values of each layer, (1, kv, t, d), of one flat row; the lists are emptied.
        paths: Positions in that row of each prompt's tokens.
        prompt_of: Which prompt each row has.
        windows: Tokens that each layer looks back, ``None`` for all.
        budget: Tokens that a row samples at most.
    """

    def __init__(
        self,
        prompts: tuple[list[Tensor], list[Tensor]],
        paths: Sequence[Tensor],
        prompt_of: Sequence[int],
        windows: Sequence[int | None],
        budget: int,
    ) -> None:
        first = prompts[0][0]
        device, self._heads, width = first.device, first.shape[1], first.shape[3]
        places = torch.nn.utils.rnn.pad_sequence(list(paths), batch_first=True).to(device)
        self.windows = tuple(windows)
        self.size = 0
        """Counts the sizes that the cache has had."""
        self._prompt_of, self._budget, self._drawn = list(prompt_of), budget, 0
        self._lengths = torch.tensor([len(path) for path in paths], device=device)
        self._shared: list[Pair] = []
        for _ in self.windows:  # layer by layer, so that few are held twice
            keys, values = (side.pop(0)[0, :, places].transpose(0, 1).flatten(0, 1) for side in prompts)
            self._shared.append((keys, values))
        self._slots, self._room = bucket(len(self._prompt_of), SLOTS), min(ROOM, budget)
        shape = (self._slots * self._heads, self._room)
        self._own = [(k.new_zeros((*shape, width)), v.new_zeros((*shape, v.shape[2]))) for k, v in self._shared]
        self._at = torch.zeros(1, dtype=torch.long, device=device)
        self._group_rows()
        self._visible: dict[int | None, Pair] = {}

    @property
    def slots(self) -> int:
        """Rows of the model's batch."""
        return self._slots

    def begin(self) -> Tensor:
        """Begin a step; returns the (slots, 1) position of each slot's token."""
        self._visible = {}
        return (self._lengths[self._prompt] + self._at)[:, None]

    def make_room(self) -> None:
        """Make sure that each row has room for one more token."""
        if self._drawn < self._room:
            return
        self._room = min(2 * self._room, self._budget)
        more = (0, 0, 0, self._room - self._drawn)
        for layer, (keys, values) in enumerate(self._own):
            self._own[layer] = (functional.pad(keys, more), functional.pad(values, more))
        self.size += 1

    def advance(self) -> None:
        """End a step: each row holds one more token."""
        self._drawn += 1
        self._at.add_(1)

    def keep(self, rows: Tensor) -> None:
        """Let all rows go but those at the given ascending positions."""
        row_list = rows.tolist()
        self._prompt_of = [self._prompt_of[row] for row in row_list]
        slots = bucket(len(row_list), SLOTS)
        heads = torch.arange(self._heads, device=rows.device)
        if slots == self._slots:
            index = (rows[:, None] * self._heads + heads).flatten()
            for pair in self._own:
                for memory in pair:
                    tokens = memory[:, : self._drawn]
                    tokens[: len(index)] = tokens.index_select(0, index)
            self._group_rows(self._each)
            return
        self._slots = slots
        filled = functional.pad(rows, (0, slots - len(row_list)))
        index = (filled[:, None] * self._heads + heads).flatten()
        for layer, (keys, values) in enumerate(self._own):
            self._own[layer] = (keys.index_select(0, index), values.index_select(0, index))
        live = sorted(set(self._prompt_of))
        if len(live) < len(self._lengths):
            self._prompt_of = [live.index(prompt) for prompt in self._prompt_of]
            stay = torch.tensor(live, device=rows.device)
            self._lengths = self._lengths[stay]
            index = (stay[:, None] * self._heads + heads).flatten()
            for layer, (keys, values) in enumerate(self._shared):
                self._shared[layer] = (keys.index_select(0, index), values.index_select(0, index))
        self._group_rows()
        self.size += 1

    def _group_rows(self, each: int | None = None) -> None:
        """Note which rows each prompt has; in the present tensors where places for each of them stay as many."""
        members: list[list[int]] = [[] for _ in self._lengths]
        place = [0] * self._slots
        for row, prompt in enumerate(self._prompt_of):
            place[row] = len(members[prompt])
            members[prompt].append(row)
        self._each = most = max(map(len, members)) if each is None else each
        prompt_of = self._prompt_of + [0] * (self._slots - len(self._prompt_of))
        # An empty place repeats the prompt's first row, or the batch's.
        row_of = [(rows + (rows[:1] or [0]) * most)[:most] for rows in members]
        place_of = [prompt * most + p for prompt, p in zip(prompt_of, place, strict=True)]
        maps = (torch.tensor(prompt_of), torch.tensor(row_of).flatten(), torch.tensor(place_of))
        if each is None:
            self._prompt, self._row_of, self._place_of = (x.to(self._lengths.device) for x in maps)
        else:
            for old, new in zip((self._prompt, self._row_of, self._place_of), maps, strict=True):
                old.copy_(new)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Store a token's key and value, and attend to the prompt's and the row's own; one query a slot."""
        keys, values = self._shared[layer]
        own_keys, own_values = self._own[layer]
        query, key, value = query.to(keys.dtype), key.to(keys.dtype), value.to(keys.dtype)
        own_keys.index_copy_(1, self._at, key.flatten(0, 1))
        own_values.index_copy_(1, self._at, value.flatten(0, 1))
        of_prompts, of_rows = self._seen(self.windows[layer])
        queries = query.reshape(self._slots, self._heads, -1, query.shape[3])
        with torch.autocast(query.device.type, enabled=False):  # it would round the products
            own = part(queries.flatten(0, 1), own_keys, own_values, scale, of_rows)
            shared = part(self._grouped(queries), keys, values, scale, of_prompts)
        out, log = (x.view(self._slots, self._heads, -1, x.shape[-1]) for x in own)
        other, other_log = (self._ungrouped(x) for x in shared)
        whole = torch.lerp(other, out, torch.sigmoid(log - other_log))
        return whole.to(query.dtype).view(self._slots, -1, 1, whole.shape[-1])

    def _seen(self, window: int | None) -> Pair:
        """(prompts * kv, 1, n) which of the prompts' keys a query sees, and (1, 1, room) which of its row's own."""
        if window not in self._visible:
            place, own = (torch.arange(x, device=self._at.device) for x in (self._shared[0][0].shape[1], self._room))
            of_prompts, of_rows = place < self._lengths[:, None], own <= self._at
            if window is not None:
                of_prompts &= (self._lengths + self._at)[:, None] - place < window
                of_rows &= self._at - own < window
            self._visible[window] = (of_prompts.repeat_interleave(self._heads, 0)[:, None], of_rows[None, None])
        return self._visible[window]

    def _grouped(self, x: Tensor) -> Tensor:
        """(prompts * kv, each * n, d) of (slots, kv, n, d)."""
        rows = x.index_select(0, self._row_of).view(-1, self._each, *x.shape[1:])
        return rows.transpose(1, 2).reshape(-1, self._each * x.shape[2], x.shape[3])

    def _ungrouped(self, x: Tensor) -> Tensor:
        """(slots, kv, n, d) of (prompts * kv, each * n, d)."""
        rows = x.view(len(self._lengths), self._heads, self._each, -1, x.shape[-1]).transpose(1, 2)
        return rows.flatten(0, 1).index_select(0, self._place_of)


def part(query: Tensor, key: Tensor, value: Tensor, scale: float, seen: Tensor) -> Pair:
    """Attention of few queries to some of the keys that they see, as plain products; sums in float32 or better.

    Args:
        query: (b, n, d).
        key: (b, t, d).
        value: As the keys.
        scale: On the products.
        seen: (b or 1, 1, t) boolean; where it is false throughout, the second output is as good as minus infinity.

    Returns:
        (b, n, d) output and (b, n, 1) logarithm of the denominator, float32 or better.
    """
    scores = product(query, key.mT).mul_(scale).masked_fill_(~seen, -torch.inf)
    top = scores.amax(-1, keepdim=True).clamp_(min=_LOWEST)
    weights = scores.sub_(top).exp_()
    mass = weights.sum(-1, keepdim=True).clamp_(min=torch.finfo(weights.dtype).tiny)
    return product(weights.to(value.dtype), value).div_(mass), mass.log().add_(top)


def product(a: Tensor, b: Tensor) -> Tensor:
    """(b, n, m) batched product in float32 or better, of operands that are read in their own type."""
    precise = torch.promote_types(a.dtype, torch.float32)
    if a.dtype == precise:
        return torch.bmm(a, b)
    if a.device.type == "cuda":
        return torch.bmm(a, b, out_dtype=precise)
    return torch.bmm(a.to(precise), b.to(precise))
