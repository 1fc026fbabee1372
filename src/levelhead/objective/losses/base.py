"""What every policy loss is: its knobs, what it needs, and its surrogate, in one class.

This module and those of the losses import no torch, since recipes are read where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

from levelhead.section import Section

if TYPE_CHECKING:
    from torch import Tensor

    from levelhead.objective.losses.inputs import Inputs


@dataclass(frozen=True, slots=True)
class Surrogate:
    """What a loss returns: its natural value a token, to be maximised, and its statistics."""

    value_nt: Tensor
    stats: Mapping[str, Tensor] = field(default_factory=dict)


class Loss(Section):
    """A policy loss: its fields are its knobs, :meth:`surrogate` is its formula.

    A subclass is a whole loss; the docstring of a field is the documentation of its key ``grpo.loss.<field>``.
    """

    name: ClassVar[str] = ""
    """Its ``grpo.loss.kind``; a class of your own needs none."""
    has_ratio: ClassVar[bool] = True
    """Whether it corrects for tokens that an older policy sampled, by the ratio of new to old."""
    clips_tokens: ClassVar[bool] = False
    """Whether it clips the ratio of each token, so that its ``clip_ratio/*`` are shares of tokens beyond a bound."""
    by_sequence: ClassVar[bool] = False
    """Whether it takes one advantage a sequence, and none a token."""
    selects_tokens: ClassVar[bool] = False
    """Whether it treats a few tokens of a batch otherwise than the rest, so that not every token is learnt from."""

    @property
    def clip_range(self) -> tuple[float, float]:
        """How far the ratio may fall below 1 and rise above it; zeros where nothing is clipped."""
        return 0.0, 0.0

    def with_clip_scaled(self, factor: float) -> Self:  # noqa: ARG002
        """Return the loss with its clip range times ``factor``, as a guard tightens it; itself where it has none."""
        return self

    def surrogate(self, inputs: Inputs) -> Surrogate:
        """Return the value of each token, shape (n, t), with gradient to ``inputs.logp_nt``, and statistics.

        What stands at masked tokens does not matter.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method surrogate(self, inputs)")


class Clipped(Loss):
    """A loss with a clip range; a subclass gives ``clip_low`` and ``clip_high`` with the defaults of its paper."""

    clip_low: float
    clip_high: float

    @property
    def clip_range(self) -> tuple[float, float]:
        """How far the ratio may fall below 1 and rise above it."""
        return self.clip_low, self.clip_high

    def with_clip_scaled(self, factor: float) -> Self:
        """Return the loss with its clip range times ``factor``."""
        return self.model_copy(update={"clip_low": self.clip_low * factor, "clip_high": self.clip_high * factor})
