"""``tasks[].shaping``: what is done to rewards before they become advantages."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from levelhead.section import Section


class ZScore(Section):
    """Rewards as standard deviations from their running mean."""

    decay: float = Field(0.99, ge=0, lt=1)
    """Weight of the past at every batch."""
    tail: float = Field(0.01, ge=0, lt=0.5)
    """Share of a batch's rewards pulled in on either side before they enter the statistics."""
    limit: float | None = Field(5.0, gt=0, le=1e6)
    """Bound on the absolute result."""
    eps: float = Field(1e-4, ge=0, le=1e3)
    """Added to the standard deviation."""


class Overlong(Section):
    """Soft overlong punishment (DAPO, Yu et al. 2025)."""

    kind: Literal["overlong"]
    """``overlong``."""
    max_length: int | None = Field(None, ge=1)
    """Tokens at which the whole penalty is reached; the completion budget unless given."""
    cache: int = Field(ge=0)
    """Tokens over which it grows."""
    coef: float = Field(1.0, gt=0, le=1e6)
    """Size of the whole penalty."""


class PerToken(Section):
    """A price for every token."""

    kind: Literal["per_token"]
    """``per_token``."""
    coef: float = Field(gt=0, le=1e6)
    """Penalty of a completion of ``max_length`` tokens."""
    max_length: int | None = Field(None, ge=1)
    """Tokens that cost ``coef``; the completion budget unless given."""


class GroupRelative(Section):
    """Shorter than the group's others is better (Kimi k1.5)."""

    kind: Literal["group_relative"]
    """``group_relative``."""
    coef: float = Field(1.0, gt=0, le=1e6)
    """Weight of the length reward."""
    threshold: float = 0.5
    """A reward above it is solved."""


LengthPenalty = Annotated[Overlong | PerToken | GroupRelative, Field(discriminator="kind")]


class Shaping(Section):
    """What is done to a task's rewards before they become advantages, in this order; by default nothing."""

    length: LengthPenalty | None = None
    """Added to the reward."""
    zscore: ZScore | None = None
    """Running normalisation."""
    scale: float = Field(1.0, gt=0, le=1e6)
    """Factor."""
    clip: tuple[float, float] | None = None
    """Lowest and highest reward."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.clip is not None and not self.clip[0] < self.clip[1]:
            raise ValueError(f"clip must be a lower and a higher bound, got {list(self.clip)}")
        return self
