"""The sampler protocol: where completions come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from levelhead.recipe.sampling import Sampling
from levelhead.records import Prompt, Turn


@runtime_checkable
class Sampler(Protocol):
    """Draws completions.  In-process today; a server with weight sync is another implementation."""

    @property
    def version(self) -> int:
        """Optimizer updates that the weights in use have seen."""
        ...

    def sample(self, prompts: Sequence[Prompt], k: int, controls: Sampling, seed: int) -> list[list[Turn]]:
        """Draw k completions of each rendered prompt.

        The tokens of a completion depend on the weights, ``seed``, the prompt's id and tokens and the index in
        its group, and on nothing else in the batch.

        Returns:
            One list of k turns a prompt, in order.
        """
        ...

    def sync(self, policy: Any, version: int) -> None:
        """Take over the weights of a policy that has seen ``version`` updates."""
        ...
