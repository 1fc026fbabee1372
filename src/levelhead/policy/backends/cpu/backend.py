"""The backend of a CPU: no padding, no mask, and decoding without the model's modules where that is the same."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from levelhead.policy.backends.base import TREES, MakeDecoder, PolicyLike
from levelhead.policy.backends.cpu import attention
from levelhead.policy.backends.cpu.decoder import SharedDecoder
from levelhead.policy.backends.cpu.stepper import Stepper, make_stepper
from levelhead.policy.backends.cpu.trim import trim_last_layer
from levelhead.policy.backends.sdpa import Sdpa
from levelhead.policy.packing import MicroBatch, TokenSequence, pack
from levelhead.records import Prompt

STEPPER_TOLERANCE = 2e-5
"""Relative distance of its logits from the model's own up to which a stepper is used."""

TREE_TOLERANCE = {"exact": 1e-4, "rounded": 5e-2}
"""Relative distance of hidden states over trees from those under a mask, in float32 and in coarser types."""

_log = logging.getLogger(__name__)


class Cpu:
    """See :class:`~levelhead.policy.backends.base.Backend`.

    What the architecture does is not assumed but compared, on the model at hand: attention over trees with a dense mask
    when the backend is chosen, and a stepper with the model's own modules when it is first asked for.
    """

    name = "cpu"

    def __init__(self) -> None:
        self._padded = Sdpa()
        self.steps: bool | None = None
        """Whether a stepper computes what the model computes; ``None`` before anyone looked."""

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

    def hidden(self, policy: PolicyLike, model: Any, batch: MicroBatch) -> Tensor:
        """See :class:`~levelhead.policy.backends.base.Backend`.

        Raises:
            RuntimeError: Not every layer of the model looked at the tree.
        """
        if not batch.nodes:
            return self._padded.hidden(policy, model, batch)
        layers = model.config.num_hidden_layers
        forest = attention.Forest(batch.nodes, layers, batch.gather.unique())
        output = policy.forward(
            model.get_decoder(),
            input_ids=batch.input_ids,
            attention_mask=attention.unused_mask(batch.input_ids.device),
            position_ids=batch.position_ids,
            use_cache=False,
            branches=forest,
        )
        if forest.seen != layers:
            raise RuntimeError(f"{forest.seen} of {layers} layers looked at the prefix tree")
        hidden: Tensor = output.last_hidden_state
        return hidden.flatten(0, 1)[batch.gather]

    def decoders(self, policy: PolicyLike) -> MakeDecoder:
        """See :class:`~levelhead.policy.backends.base.Backend`."""
        return functools.partial(SharedDecoder, policy, self.stepper(policy))

    @torch.inference_mode()
    def stepper(self, policy: PolicyLike) -> Stepper | None:
        """A stepper on a policy's weights as they are now, where there is one that computes what its model computes."""
        if self.steps is False:
            return None
        stepper = make_stepper(policy)
        if self.steps is None and stepper is not None:
            gap = _stepper_gap(policy, stepper)
            self.steps = gap <= STEPPER_TOLERANCE
            name = type(policy.base).__name__
            if not self.steps:
                _log.warning("%s samples through its own modules (a stepper differs by %.2g)", name, gap)
                return None
            if stepper.copied:
                _log.info("%s samples from copies of %d MiB of its weights", name, stepper.copied >> 20)
        return stepper if self.steps else None


@torch.no_grad()
def _install(policy: PolicyLike) -> str | None:
    """Let a model compute attention over trees; returns why it cannot, and then leaves it as it was."""
    sequences = [TokenSequence((0, 1, 2), (1, 2)), TokenSequence((0, 1, 2), (2, 1, 2)), TokenSequence((2,), (0, 1))]
    (padded,), (flat,) = pack(sequences, tokens=100), pack(sequences, tokens=100, flat=True)
    config = policy.base.config
    before = config._attn_implementation
    want = Sdpa().hidden(policy, policy.base, padded).float()
    config._attn_implementation = TREES
    hooks = trim_last_layer(policy.base.get_decoder())
    try:
        gap = float((Cpu().hidden(policy, policy.base, flat).float() - want).norm() / want.norm())
        reason = f"its outputs differ by {gap:.2g}"
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        gap, reason = math.inf, str(error).partition("\n")[0]
    exact = policy.compute_dtype == policy.base.dtype == torch.float32
    if gap <= TREE_TOLERANCE["exact" if exact else "rounded"]:
        return None
    for hook in hooks:
        hook.remove()
    config._attn_implementation = before
    return reason


def _stepper_gap(policy: PolicyLike, stepper: Stepper) -> float:
    """Relative distance of a stepper's logits from the model's own, for a few tokens of three prompts."""
    prompts = [Prompt(str(i), "", (), ids) for i, ids in enumerate([(0, 1, 2), (2, 1), (0, 1, *[1, 2, 0] * 10)])]
    ours, own = (
        torch.cat([decoder.start(), decoder.step(torch.tensor([0, 1, 2, 0, 1, 2]))])
        for decoder in (SharedDecoder(policy, each, prompts, 2, 2) for each in (stepper, None))
    )
    return float((ours - own).norm() / own.norm())
