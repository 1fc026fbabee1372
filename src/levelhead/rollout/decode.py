"""Decoding: the logits of every row's next token, whatever memory of keys and values stands behind it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache

from levelhead.policy import attention
from levelhead.policy.packing import trie
from levelhead.policy.policy import Policy
from levelhead.records import Prompt
from levelhead.rollout.stepper import Stepper, make_stepper

_log = logging.getLogger(__name__)


STEPPER_TOLERANCE = 2e-5
"""Relative distance of its logits from the model's own up to which a stepper is used."""


class Decoder(Protocol):
    """Draws from k rows a prompt, prompt after prompt."""

    def start(self) -> Tensor:
        """(rows, v) float32 logits of each row's first token."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """(rows, v) float32 logits behind each row's new token, (rows,)."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Let all rows go but those at the given ascending positions."""
        ...


def make_decoder(
    policy: Policy, prompts: Sequence[Prompt], k: int, budget: int, stepper: Stepper | None = None
) -> Decoder:
    """The fastest decoder that a policy's model allows.

    Args:
        policy: Whose model draws.
        prompts: Rendered.
        k: Rows a prompt.
        budget: Tokens that a row draws at most.
        stepper: On the policy's weights as they are now, from :func:`find_stepper`.
    """
    return (SharedDecoder if policy.branches else PaddedDecoder)(policy, prompts, k, budget, stepper)


@torch.inference_mode()
def find_stepper(policy: Policy) -> Stepper | None:
    """A stepper on a policy's weights as they are now, where there is one that computes what its model computes.

    That is found out once a policy, by comparing the logits of a few tokens on this model.
    """
    if policy.steps is False:
        return None
    stepper = make_stepper(policy)
    if policy.steps is None and stepper is not None:
        prompts = [Prompt(str(i), "", (), ids) for i, ids in enumerate([(0, 1, 2), (2, 1), (0, 1, *[1, 2, 0] * 10)])]
        found = []
        for each in (stepper, None):
            decoder = SharedDecoder(policy, prompts, 2, 2, each)
            found.append(torch.cat([decoder.start(), decoder.step(torch.tensor([0, 1, 2, 0, 1, 2]))]))
        gap = float((found[0] - found[1]).norm() / found[1].norm())
        policy.steps = gap <= STEPPER_TOLERANCE
        if not policy.steps:
            _log.warning("%s samples through its own modules (a stepper differs by %.2g)", _name(policy), gap)
            return None
        if stepper.merged:
            _log.info("%s samples from a merged copy of its weights (%d MiB)", _name(policy), stepper.merged >> 20)
    return stepper if policy.steps else None


def _name(policy: Policy) -> str:
    return type(policy.base).__name__


def _different(prompts: Sequence[Prompt], k: int) -> tuple[list[tuple[int, ...]], Tensor]:
    """Token ids of the different prompts, and which of them each row has, (prompts x k,)."""
    places: dict[tuple[int, ...], int] = {}
    rows = [places.setdefault(prompt.token_ids, len(places)) for prompt in prompts for _ in range(k)]
    return list(places), torch.tensor(rows)


class PaddedDecoder:
    """For any model: prompts are left padded, and each row has transformers' own cache.

    Each different prompt is computed once; its cache is copied to its rows.
    """

    def __init__(self, policy: Policy, prompts: Sequence[Prompt], k: int, *_: object) -> None:
        self._policy = policy
        different, self._prompt_of = _different(prompts, k)
        longest = max(map(len, different))
        ids = torch.full((len(different), longest), policy.codec.pad_id)
        mask = torch.zeros((len(different), longest), dtype=torch.long)
        for row, token_ids in enumerate(different):
            ids[row, longest - len(token_ids) :] = torch.tensor(token_ids)
            mask[row, longest - len(token_ids) :] = 1
        self._ids, self._mask = ids.to(policy.device), mask.to(policy.device)
        self._cache = DynamicCache(config=policy.base.config)

    def start(self) -> Tensor:
        """See :class:`Decoder`."""
        logits = self.forward(self._ids, self._mask)
        if len(self._prompt_of) == len(self._ids):  # one row a prompt, in order
            return logits
        rows = self._prompt_of.to(self._policy.device)
        self.keep(rows)
        return logits[rows]

    def step(self, tokens: Tensor) -> Tensor:
        """See :class:`Decoder`."""
        self._mask = torch.cat([self._mask, self._mask.new_ones((len(tokens), 1))], 1)
        return self.forward(tokens[:, None], self._mask)

    def keep(self, rows: Tensor) -> None:
        """See :class:`Decoder`."""
        # The one selection of rows that the caches of convolution and recurrent layers have too.
        self._cache.reorder_cache(rows)  # type: ignore[arg-type]
        self._mask = self._mask[rows]

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Float32 logits of the last position; positions count real tokens only."""
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        padded = None if bool(mask.all()) else mask
        with self._policy.autocast():
            output = self._policy.base(
                input_ids=ids,
                attention_mask=padded,
                position_ids=positions,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )
        logits: Tensor = output.logits[:, -1].float()
        return logits


class SharedDecoder:
    """For models that compute attention over nodes: what rows share is computed, and kept, once.

    All prompts are one forest, so that a beginning which they have in common is computed once.  While decoding, the
    rows of a prompt look at one copy of its keys and values together, and each at its own, which lie in memory set
    aside for the whole budget.
    """

    def __init__(
        self, policy: Policy, prompts: Sequence[Prompt], k: int, budget: int, stepper: Stepper | None = None
    ) -> None:
        self._policy, self._budget, self._stepper = policy, budget, stepper
        self._prompts, self._prompt_of = _different(prompts, k)
        self._memory: _Memory | None = None
        self._positions = torch.tensor([len(ids) for ids in self._prompts])[self._prompt_of, None]

    def start(self) -> Tensor:
        """See :class:`Decoder`."""
        tokens, depths, paths, nodes = trie(self._prompts)
        last = torch.stack([path[-1] for path in paths])
        needed, order = last.unique(return_inverse=True)
        layers = self._policy.base.config.num_hidden_layers
        forest = attention.Forest(nodes, layers, needed, keep=True)
        logits = self._forward(torch.tensor([tokens]), torch.tensor([depths]), forest, needed)
        self._memory = _Memory(forest, paths, self._prompt_of, self._budget)
        return logits[order[self._prompt_of]]

    def step(self, tokens: Tensor) -> Tensor:
        """See :class:`Decoder`."""
        assert self._memory is not None  # noqa: S101 - start() comes first
        logits = self._forward(tokens[:, None], self._positions, self._memory)
        self._memory.length += 1
        self._positions = self._positions + 1
        return logits

    def keep(self, rows: Tensor) -> None:
        """See :class:`Decoder`."""
        assert self._memory is not None  # noqa: S101 - start() comes first
        self._memory.keep(rows)
        self._positions = self._positions[rows]

    def _forward(self, ids: Tensor, positions: Tensor, branches: Any, needed: Tensor | None = None) -> Tensor:
        """(n, v) logits of some positions of one row, or of the only one of each row."""
        if self._stepper is not None:
            return self._stepper(ids, positions, branches, needed)
        with self._policy.autocast():
            output = self._policy.base(
                input_ids=ids,
                attention_mask=attention.unused_mask(ids.device),
                position_ids=positions,
                use_cache=False,
                logits_to_keep=1 if needed is None else needed,
                branches=branches,
            )
        found: Tensor = output.logits.float().flatten(0, 1)
        return found


class _Memory:
    """Keys and values of prompts, one copy each, and of what their rows have drawn.

    Args:
        forest: That holds the prompts' keys and values.
        paths: Row positions of each prompt's tokens.
        prompt_of: (rows,) which prompt each row has.
        budget: Tokens that a row draws at most.
    """

    def __init__(self, forest: attention.Forest, paths: Sequence[Tensor], prompt_of: Tensor, budget: int) -> None:
        longest = max(len(path) for path in paths)
        places = torch.stack([torch.nn.functional.pad(path, (longest - len(path), 0)) for path in paths])
        self._shared = [
            tuple(x[0][:, places].transpose(0, 1) for x in pair)
            for pair in zip(forest.keys, forest.values, strict=True)
        ]
        real = torch.tensor([[longest - len(path)] for path in paths]) <= torch.arange(longest)
        self._hidden = None if bool(real.all()) else torch.zeros(real.shape).masked_fill(~real, -torch.inf)
        self._budget = budget
        self._own: list[tuple[Tensor, Tensor]] = []
        self.length = 0
        self._prompt_of = prompt_of
        self._arrange()

    def keep(self, rows: Tensor) -> None:
        """Let all rows go but some, and the prompts that have none left."""
        self._own = [(keys[rows], values[rows]) for keys, values in self._own]
        prompts, self._prompt_of = self._prompt_of[rows].unique(return_inverse=True)
        if len(prompts) < len(self._shared[0][0]):
            self._shared = [(keys[prompts], values[prompts]) for keys, values in self._shared]
            self._hidden = None if self._hidden is None else self._hidden[prompts]
        self._arrange()

    def _arrange(self) -> None:
        """Find for each prompt the places of its rows; one with fewer than others looks at its first row again."""
        counts = torch.bincount(self._prompt_of)
        self._slots = int(counts.max())
        starts = counts.cumsum(0) - counts
        order = self._prompt_of.argsort(stable=True)
        rank = order.argsort()
        slot = torch.arange(self._slots)
        self._taken = order[torch.where(slot < counts[:, None], starts[:, None] + slot, starts[:, None]).flatten()]
        self._places = self._prompt_of * self._slots + rank - starts[self._prompt_of]
        self._even = torch.equal(self._taken, torch.arange(len(self._prompt_of)))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Store a token's key and value, and attend to the prompt's and the row's own; one query a row."""
        rows, heads, _, width = query.shape
        kv_heads = key.shape[1]
        each = heads // kv_heads
        shared_keys, shared_values = self._shared[layer]
        if layer == len(self._own):
            shapes = [(rows, kv_heads, self._budget, x.shape[-1]) for x in (key, value)]
            self._own.append((shared_keys.new_empty(shapes[0]), shared_keys.new_empty(shapes[1])))
        keys, values = self._own[layer]
        keys[:, :, self.length] = key[:, :, 0]
        values[:, :, self.length] = value[:, :, 0]
        end = self.length + 1
        query = query.to(shared_keys.dtype).view(rows, kv_heads, each, width)
        out, log = attention.fused(query, keys[:, :, :end], values[:, :, :end], scale)
        # The queries of a prompt's rows, head by head, look at its keys together.
        asked = query if self._even else query[self._taken]
        asked = asked.unflatten(0, (-1, self._slots)).transpose(1, 2).flatten(2, 3)
        mask = None if self._hidden is None else self._hidden[:, None, None]
        other, other_log = attention.fused(asked, shared_keys, shared_values, scale, mask=mask)
        other = other.unflatten(2, (self._slots, each)).transpose(1, 2).flatten(0, 1)
        other_log = other_log.unflatten(2, (self._slots, each)).transpose(1, 2).flatten(0, 1)
        if not self._even:
            other, other_log = other[self._places], other_log[self._places]
        part = torch.sigmoid(log - other_log)[..., None]
        return torch.lerp(other.float(), out.float(), part).to(out.dtype).reshape(rows, heads, 1, -1)
