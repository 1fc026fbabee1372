"""Length penalties: rewards that fall with the number of tokens of a completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from levelhead.objective.advantages.base import Array, check_rewards
from levelhead.objective.registry import build
from levelhead.objective.shaping.base import LengthPenalty


class Budgeted(LengthPenalty):
    """A length penalty that is measured against a longest completion."""

    if TYPE_CHECKING:
        max_length: int | None  # each penalty says what it is

    def with_budget(self, tokens: int) -> Self:
        """Return the penalty with ``tokens`` as its ``max_length``, unless it has one; raises where they do not fit."""
        if self.max_length is not None:
            return self
        return build(type(self), {**self.model_dump(), "max_length": tokens}, "")

    @property
    def longest(self) -> int:
        """``max_length``; raises ``ValueError`` where there is neither that nor a budget."""
        if self.max_length is None:
            raise ValueError(f"length penalty {self.name!r} needs max_length, or a completion budget to take it from")
        return self.max_length


class Overlong(Budgeted):
    """Soft overlong punishment: 0 up to ``max_length - cache``, then linearly down to ``-coef`` at ``max_length``.

    Yu et al. 2025, DAPO, arXiv:2503.14476, equation 13.
    """

    name = "overlong"

    max_length: int | None = Field(None, ge=1)
    """Tokens at which the whole penalty is reached; the completion budget unless given."""
    cache: int = Field(ge=0)
    """Tokens over which it grows; 0 makes it a step above ``max_length``."""
    coef: float = Field(1.0, gt=0, le=1e6)
    """Size of the whole penalty."""

    @model_validator(mode="after")
    def _cache_fits(self) -> Self:
        if self.max_length is not None and self.cache > self.max_length:
            raise ValueError(f"cache must be between 0 and max_length={self.max_length}, got {self.cache}")
        return self

    def addition(self, rewards_gk: Array, lengths_gk: Array) -> Array:
        """Return ``-coef * clip((length - (max_length - cache)) / cache, 0, 1)``, shape (groups, K)."""
        xp, _ = check_rewards(rewards_gk)
        over_gk = lengths_gk - (self.longest - self.cache)
        if self.cache == 0:
            return -self.coef * xp.astype(over_gk > 0, lengths_gk.dtype)
        return -self.coef * xp.clip(over_gk / self.cache, 0, 1)


class PerToken(Budgeted):
    """A price for every token, ``-coef * length / max_length``."""

    name = "per_token"

    coef: float = Field(gt=0, le=1e6)
    """Penalty of a completion of ``max_length`` tokens."""
    max_length: int | None = Field(None, ge=1)
    """Tokens that cost ``coef``; the completion budget unless given."""

    def addition(self, rewards_gk: Array, lengths_gk: Array) -> Array:  # noqa: ARG002
        """Return the price of each completion, shape (groups, K)."""
        return lengths_gk * (-self.coef / self.longest)


class GroupRelative(LengthPenalty):
    """Shorter than the group's others is better: ``0.5 - (length - shortest) / (longest - shortest)``.

    Solved completions get it as it is, failed ones only where it is negative; a group of one length gets 0
    (Kimi Team 2025, Kimi k1.5, arXiv:2501.12599, length penalty).
    """

    name = "group_relative"

    coef: float = Field(1.0, gt=0, le=1e6)
    """Weight of the length reward."""
    threshold: float = 0.5
    """A reward above it is solved."""

    def addition(self, rewards_gk: Array, lengths_gk: Array) -> Array:
        """Return the length reward of each completion, shape (groups, K)."""
        xp, rewards_gk = check_rewards(rewards_gk)
        short_g1 = xp.min(lengths_gk, axis=1, keepdims=True)
        span_g1 = xp.max(lengths_gk, axis=1, keepdims=True) - short_g1
        share_gk = 0.5 - (lengths_gk - short_g1) / xp.where(span_g1 > 0, span_g1, xp.ones_like(span_g1))
        share_gk = xp.where(rewards_gk > self.threshold, share_gk, xp.clip(share_gk, None, 0))
        return self.coef * xp.where(span_g1 > 0, share_gk, xp.zeros_like(share_gk))
