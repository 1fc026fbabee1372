"""The protocol of a backend: the layout of a policy's batches, and the passes over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from levelhead.policy.packing import MicroBatch, TokenSequence
from levelhead.records import Prompt

if TYPE_CHECKING:
    from levelhead.policy.policy import Policy


TREES = "levelhead_branches"
"""Under which transformers knows attention over prefix trees, where a backend has one."""


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
"""Makes a decoder for rendered prompts, rows a prompt, and the tokens that a row draws at most."""


class Backend(Protocol):
    """Runs a policy's model.

    A backend holds no weights: copies of a policy share it, and what it has found out of the model.
    """

    @property
    def name(self) -> str:
        """What logs call it."""
        ...

    @classmethod
    def supports(cls, policy: Policy) -> str | None:
        """Return why a policy's model cannot run here, in a few words; ``None`` where it can.

        May prepare the model for this backend, and leaves it as it was where it gives a reason.
        """
        ...

    def pack(self, policy: Policy, sequences: Sequence[TokenSequence], tokens: int) -> list[MicroBatch]:
        """Pack sequences into micro-batches of at most so many tokens, in the layout that :meth:`hidden` reads."""
        ...

    def hidden(self, policy: Policy, model: Any, batch: MicroBatch) -> Tensor:
        """(m, d) last hidden states that predict a micro-batch's completion tokens, differentiable.

        Args:
            policy: Whose :meth:`~levelhead.policy.policy.Policy.forward` runs the pass.
            model: The policy's, or its reference.
            batch: On the policy's device.
        """
        ...

    def decoders(self, policy: Policy) -> MakeDecoder:
        """Return what makes decoders on a policy's weights as they are now."""
        ...
