"""Decoding with one copy of what rows share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from levelhead.policy.backends.base import PolicyLike
from levelhead.policy.backends.cpu.attention import Forest
from levelhead.policy.backends.cpu.fused import FusedForward
from levelhead.policy.backends.cpu.memory import PrefixCache
from levelhead.policy.backends.sdpa import distinct
from levelhead.policy.backends.trees import TreeAttention, tree_logits
from levelhead.policy.packing import trie
from levelhead.records import Prompt


class SharedDecoder:
    """For models that compute attention over nodes: what rows share is computed, and kept, once.

    All prompts are one forest, so that a beginning which they have in common is computed once.  While decoding, the
    rows of a prompt look at one copy of its keys and values together, and each at its own, which lie in memory set
    aside for the whole budget.

    Args:
        policy: Whose model samples.
        fused_forward: On the policy's weights as they are now; the model's own modules are used without.
        prompts: Rendered.
        k: Rows a prompt.
        budget: Tokens that a row samples at most.
        model: What computes the same as the policy's; that one unless given.
    """

    def __init__(
        self,
        policy: PolicyLike,
        fused_forward: FusedForward | None,
        prompts: Sequence[Prompt],
        k: int,
        budget: int,
        *,
        model: nn.Module | None = None,
    ) -> None:
        self._policy, self._budget, self._fused_forward = policy, budget, fused_forward
        self._model = model or policy.base
        self._prompts, self._prompt_of = distinct(prompts, k)
        self._memory: PrefixCache | None = None
        self._positions = torch.tensor([len(ids) for ids in self._prompts])[self._prompt_of, None]

    def start(self) -> Tensor:
        """Compute every prompt once, and return the logits behind it, (rows, v) float32."""
        tokens, depths, paths, nodes = trie(self._prompts)
        last = torch.stack([path[-1] for path in paths])
        needed, order = last.unique(return_inverse=True)
        layers = self._policy.base.config.num_hidden_layers
        forest = Forest(nodes, layers, needed, keep=True)
        logits = self._forward(torch.tensor([tokens]), torch.tensor([depths]), forest, needed)
        self._memory = PrefixCache(forest, paths, self._prompt_of, self._budget)
        return logits[order[self._prompt_of]]

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token to each row, (rows,), and return the logits behind it, (rows, v) float32."""
        assert self._memory is not None  # noqa: S101 - start() comes first
        logits = self._forward(tokens[:, None], self._positions, self._memory)
        self._memory.length += 1
        self._positions = self._positions + 1
        return logits

    def keep(self, rows: Tensor) -> None:
        """Let all rows go but those at the given ascending positions."""
        assert self._memory is not None  # noqa: S101 - start() comes first
        self._memory.keep(rows)
        self._positions = self._positions[rows]

    def _forward(self, ids: Tensor, positions: Tensor, trees: TreeAttention, needed: Tensor | None = None) -> Tensor:
        """(n, v) logits of some positions of one row, or of the only one of each row."""
        if self._fused_forward is not None:
            return self._fused_forward(ids, positions, trees, needed)
        return tree_logits(self._policy, self._model, ids, positions, trees, needed)
