"""The protocol of a backend: the layout of a policy's batches, and the passes over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from levelhead.policy.packing import MicroBatch, TokenSequence
from levelhead.records import Prompt
from levelhead.text.codec import Codec

TREES = "levelhead_branches"
"""Under which transformers knows attention over prefix trees, where a backend has one."""


class PolicyLike(Protocol):
    """What a backend needs of a :class:`levelhead.policy.policy.Policy`.

    Attributes:
        base: The model, adapters inside.
        codec: Made its tokens.
        device: Where the model lies.
        compute_dtype: Type of matrix products.
        lora: Whether the model has adapters.
        shares_prefixes: Whether a tree-shaped attention mask, one for all layers, reproduces the model.
        merge_bytes: What copies of weights may take while sampling.
        runs_on: Name of the backend that is asked for, or ``auto``.
    """

    base: PreTrainedModel
    codec: Codec
    device: torch.device
    compute_dtype: torch.dtype
    lora: bool
    shares_prefixes: bool
    merge_bytes: int
    runs_on: str

    @property
    def drops_attention(self) -> bool:
        """Whether an attention layer has dropout."""
        ...

    def forward(self, module: nn.Module, **inputs: Any) -> Any:
        """Run the model, its decoder or the reference on inputs."""
        ...


class Decoder(Protocol):
    """Gives the logits of every row's next token, with k rows a prompt, prompt after prompt."""

    def start(self) -> Tensor:
        """(rows, v) float32 logits of each row's first token."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """(rows, v) float32 logits behind each row's new token, (rows,)."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Let all rows go but those at the given ascending positions."""
        ...


MakeDecoder = Callable[[Sequence[Prompt], int, int], Decoder]
"""Makes a decoder for rendered prompts, rows a prompt, and the tokens that a row samples at most."""


class Backend(Protocol):
    """Runs the forward passes of a policy's model.

    A backend holds no weights: copies of a policy share it, and what it has found out of the model.
    """

    @property
    def name(self) -> str:
        """Name in logs, as in the recipe's ``model.backend``."""
        ...

    @classmethod
    def supports(cls, policy: PolicyLike) -> str | None:
        """Return why a policy's model cannot run here, in a few words; ``None`` where it can.

        May prepare the model for this backend, and leaves it as it was where it gives a reason.
        """
        ...

    def pack(self, policy: PolicyLike, sequences: Sequence[TokenSequence], tokens: int) -> list[MicroBatch]:
        """Pack sequences into micro-batches of at most so many tokens, in the layout that :meth:`hidden` reads."""
        ...

    def shares(self, policy: PolicyLike) -> bool:
        """Whether packed sequences of a prefix group share their prefixes, each computed once."""
        ...

    def hidden(self, policy: PolicyLike, model: Any, batch: MicroBatch) -> Tensor:
        """(m, d) last hidden states that predict a micro-batch's completion tokens, differentiable.

        Args:
            policy: Whose :meth:`~levelhead.policy.policy.Policy.forward` runs the pass.
            model: The policy's, or its reference.
            batch: On the policy's device.
        """
        ...

    def decoders(self, policy: PolicyLike) -> MakeDecoder:
        """Return what makes decoders on a policy's weights as they are now."""
        ...
