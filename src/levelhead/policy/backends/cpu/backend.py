"""The backend of a CPU: no padding, no mask, and decoding without the model's modules where that is the same."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from levelhead.policy.backends.base import MakeDecoder, PolicyLike
from levelhead.policy.backends.converted import Converted
from levelhead.policy.backends.cpu import attention
from levelhead.policy.backends.cpu.attention import Forest
from levelhead.policy.backends.cpu.fused import FusedForward, make_fused
from levelhead.policy.backends.cpu.memory import PrefixCache
from levelhead.policy.backends.cpu.trim import trim_last_layer
from levelhead.policy.backends.sdpa import Sdpa, distinct
from levelhead.policy.backends.trees import TreeAttention, attend_over_trees, tree_logits, tree_states
from levelhead.policy.packing import MicroBatch, TokenSequence, pack, trie
from levelhead.records import Prompt

FUSED_TOLERANCE = 2e-5
"""Relative distance of its logits from the model's own up to which a fused forward is used."""

_log = logging.getLogger(__name__)


class Cpu:
    """The :class:`~levelhead.policy.backends.base.Backend` for a CPU.

    What the architecture does is not assumed but compared, on the model at hand: attention over trees with a dense mask
    when the backend is chosen, and a fused forward with the model's own modules when it is first asked for.
    """

    name = "cpu"

    def __init__(self) -> None:
        self._padded = Sdpa()
        self.steps: bool | None = None
        """Whether a fused forward computes what the model computes; ``None`` before anyone looked."""

    @classmethod
    def supports(cls, policy: PolicyLike) -> str | None:
        """See :class:`~levelhead.policy.backends.base.Backend`; warns where the model should have run here."""
        if policy.device.type != "cpu":
            return f"the model is on {policy.device.type}"
        if not policy.shares_prefixes:
            return "some layers are not full attention"
        reason = _install(policy)
        if reason is not None:
            name = type(policy.base).__name__
            _log.warning(
                "%s does not compute attention over prefix trees: padding and masks instead (%s)", name, reason
            )
        return reason

    def pack(self, policy: PolicyLike, sequences: Sequence[TokenSequence], tokens: int) -> list[MicroBatch]:
        """See :class:`~levelhead.policy.backends.base.Backend`; with dropout in attention, rows are padded."""
        if policy.drops_attention:
            return self._padded.pack(policy, sequences, tokens)
        return pack(sequences, tokens=tokens, pad_id=policy.codec.pad_id, flat=True)

    def shares(self, _policy: PolicyLike) -> bool:
        """Whether packed sequences of a prefix group share their prefixes, each computed once."""
        return True

    def hidden(self, policy: PolicyLike, model: Any, batch: MicroBatch) -> Tensor:
        """Return the needed hidden states, with prefix trees under a dense mask.

        Raises:
            RuntimeError: Not every layer of the model looked at the tree.
        """
        if not batch.nodes:
            return self._padded.hidden(policy, model, batch)
        forest = attention.Forest(batch.nodes, model.config.num_hidden_layers, batch.gather.unique())
        return tree_states(policy, model, batch, forest)

    def decoders(self, policy: PolicyLike) -> MakeDecoder:
        """Return what makes decoders on the weights as they are now, laid out for the processor."""
        fused_forward = self.fused_forward(policy)
        own = policy.base if fused_forward is not None else Converted(policy)
        return functools.partial(SharedDecoder, policy, fused_forward, model=own)

    @torch.inference_mode()
    def fused_forward(self, policy: PolicyLike) -> FusedForward | None:
        """A fused forward on the current weights, where there is one that computes what the model computes."""
        if self.steps is False:
            return None
        fused_forward = make_fused(policy)
        if self.steps is None and fused_forward is not None:
            gap = _fused_gap(policy, fused_forward)
            self.steps = gap <= FUSED_TOLERANCE
            name = type(policy.base).__name__
            if not self.steps:
                _log.warning("%s samples through its own modules (a fused forward differs by %.2g)", name, gap)
                return None
            if fused_forward.copied:
                _log.info("%s samples from copies of %d MiB of its weights", name, fused_forward.copied >> 20)
        return fused_forward if self.steps else None


def _install(policy: PolicyLike) -> str | None:
    """Let a model compute attention over trees; returns why it cannot, and then leaves it as it was."""
    hooks = trim_last_layer(policy.base.get_decoder())
    reason = attend_over_trees(policy, Cpu().hidden)
    if reason is not None:
        for hook in hooks:
            hook.remove()
    return reason


def _fused_gap(policy: PolicyLike, fused_forward: FusedForward) -> float:
    """Relative distance of a fused forward's logits from the model's own, for a few tokens of three prompts."""
    prompts = [Prompt(str(i), "", (), ids) for i, ids in enumerate([(0, 1, 2), (2, 1), (0, 1, *[1, 2, 0] * 10)])]
    ours, own = (
        torch.cat([decoder.start(), decoder.step(torch.tensor([0, 1, 2, 0, 1, 2]))])
        for decoder in (SharedDecoder(policy, each, prompts, 2, 2) for each in (fused_forward, None))
    )
    return float((ours - own).norm() / own.norm())


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
