"""Reward shaping: what is done to rewards before they become advantages, one :class:`Shaper` a task.

The order is fixed: length penalty, running z-score, scale, clip.  Everything but a length penalty maps equal rewards to
equal rewards, so a group without contrast stays without; a clip can take contrast away, and then says so through
``live_g``.  Group estimators that divide by a standard deviation undo scale and z-score; the others feel them, which is
what puts several tasks on one footing.  Arrays are numpy arrays or tensors alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Protocol

from levelhead.objective.advantages.base import Array, as_floats, check_lengths, check_rewards


@dataclass(frozen=True, slots=True)
class RunningMoments:
    """Exponentially weighted mean and variance of rewards: the state of a :class:`ZScore`, made to be saved.

    Attributes:
        mean: Weighted mean so far.
        variance: Weighted population variance so far.
        weight: Weight gathered so far, in [0, 1]; 0 before the first batch.
    """

    mean: float = 0.0
    variance: float = 0.0
    weight: float = 0.0

    def to_json(self) -> dict[str, float]:
        """Return a dict of plain numbers."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> RunningMoments:
        """Return the state that :meth:`to_json` wrote."""
        return cls(**{key: float(record[key]) for key in ("mean", "variance", "weight")})


@dataclass(frozen=True, slots=True)
class ZScore:
    """Rewards as standard deviations from their running mean, ``(r - mean) / (std + eps)``.

    The statistics are exponentially weighted over batches, every batch winsorised first, so that one outlier moves
    neither.  Early batches are weighted as if there had been no start (the bias correction of Adam).

    Attributes:
        decay: Weight of the past at every batch, in [0, 1).
        tail: Share of a batch's rewards pulled in on either side before they enter the statistics, in [0, 0.5).
        limit: Bound on the absolute result; ``None`` leaves it unbounded.
        eps: Added to the standard deviation.
    """

    decay: float = 0.99
    tail: float = 0.01
    limit: float | None = 5.0
    eps: float = 1e-4

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must be in [0, 1), got {self.decay!r}")
        if not 0 <= self.tail < 0.5:
            raise ValueError(f"tail must be in [0, 0.5), got {self.tail!r}")
        if self.limit is not None and not self.limit > 0:
            raise ValueError(f"limit must be above 0, got {self.limit!r}")
        if not self.eps >= 0:
            raise ValueError(f"eps must be 0 or more, got {self.eps!r}")

    def update(self, state: RunningMoments, rewards: Array) -> RunningMoments:
        """Return the statistics with one more batch, any shape.

        The variance is that of the mixture of the past and the batch, so a drifting mean counts as spread.
        """
        xp, values = as_floats("rewards", winsorise(rewards, tail=self.tail))
        batch_mean, batch_variance = float(xp.mean(values)), float(xp.var(values))
        past, new = self.decay * state.weight, 1 - self.decay
        weight = past + new
        mean = state.mean + new / weight * (batch_mean - state.mean)
        spread = past * (state.variance + (state.mean - mean) ** 2) + new * (batch_variance + (batch_mean - mean) ** 2)
        return RunningMoments(mean=mean, variance=spread / weight, weight=weight)

    def apply(self, state: RunningMoments, rewards: Array) -> Array:
        """Return the z-scores under ``state``, the shape of ``rewards``; 0 where nothing has varied and eps is 0."""
        xp, rewards = as_floats("rewards", rewards)
        std = math.sqrt(state.variance) + self.eps
        scores = (rewards - state.mean) / std if std > 0 else xp.zeros_like(rewards)
        return scores if self.limit is None else xp.clip(scores, -self.limit, self.limit)


class LengthPenalty(Protocol):
    """Something that turns completion lengths into an addition to the reward."""

    def __call__(self, rewards_gk: Array, lengths_gk: Array) -> Array:
        """Return what is added to each reward, shape (groups, K)."""
        ...


@dataclass(frozen=True, slots=True)
class Overlong:
    """Soft overlong punishment: 0 up to ``max_length - cache``, then linearly down to ``-coef`` at ``max_length``.

    Yu et al. 2025, DAPO, arXiv:2503.14476, equation 13.

    Attributes:
        max_length: Tokens at which the whole penalty is reached.
        cache: Tokens over which it grows; 0 makes it a step above ``max_length``.
        coef: Size of the whole penalty.
    """

    max_length: int
    cache: int
    coef: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.cache <= self.max_length:
            raise ValueError(f"cache must be between 0 and max_length={self.max_length}, got {self.cache}")

    def __call__(self, rewards_gk: Array, lengths_gk: Array) -> Array:
        """Return ``-coef * clip((length - (max_length - cache)) / cache, 0, 1)``, shape (groups, K)."""
        xp, _ = check_rewards(rewards_gk)
        over_gk = lengths_gk - (self.max_length - self.cache)
        if self.cache == 0:
            return -self.coef * xp.astype(over_gk > 0, lengths_gk.dtype)
        return -self.coef * xp.clip(over_gk / self.cache, 0, 1)


@dataclass(frozen=True, slots=True)
class PerToken:
    """A price for every token, ``-coef * length / max_length``.

    Attributes:
        coef: Penalty of a completion of ``max_length`` tokens.
        max_length: Tokens that cost ``coef``.
    """

    coef: float
    max_length: int

    def __post_init__(self) -> None:
        if self.max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {self.max_length}")

    def __call__(self, rewards_gk: Array, lengths_gk: Array) -> Array:  # noqa: ARG002
        """Return the price of each completion, shape (groups, K)."""
        return lengths_gk * (-self.coef / self.max_length)


@dataclass(frozen=True, slots=True)
class GroupRelative:
    """Shorter than the group's others is better: ``0.5 - (length - shortest) / (longest - shortest)``.

    Solved completions get it as it is, failed ones only where it is negative; a group of one length gets 0
    (Kimi Team 2025, Kimi k1.5, arXiv:2501.12599, length penalty).

    Attributes:
        coef: Weight of the length reward.
        threshold: A reward above it is solved.
    """

    coef: float = 1.0
    threshold: float = 0.5

    def __call__(self, rewards_gk: Array, lengths_gk: Array) -> Array:
        """Return the length reward of each completion, shape (groups, K)."""
        xp, rewards_gk = check_rewards(rewards_gk)
        short_g1 = xp.min(lengths_gk, axis=1, keepdims=True)
        span_g1 = xp.max(lengths_gk, axis=1, keepdims=True) - short_g1
        share_gk = 0.5 - (lengths_gk - short_g1) / xp.where(span_g1 > 0, span_g1, xp.ones_like(span_g1))
        share_gk = xp.where(rewards_gk > self.threshold, share_gk, xp.clip(share_gk, None, 0))
        return self.coef * xp.where(span_g1 > 0, share_gk, xp.zeros_like(share_gk))


@dataclass(frozen=True, slots=True)
class Shaper:
    """One task's reward shaping; the default changes nothing.

    Attributes:
        length: Added first.
        zscore: Applied next.
        scale: Factor applied next.
        clip: Lowest and highest reward that leaves, applied last.
    """

    length: LengthPenalty | None = None
    zscore: ZScore | None = None
    scale: float = 1.0
    clip: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"scale must be finite and above 0, got {self.scale!r}")
        if self.clip is not None and not self.clip[0] < self.clip[1]:
            raise ValueError(f"clip must be a lower and a higher bound, got {self.clip!r}")

    def __call__(
        self, rewards_gk: Array, state: RunningMoments, *, lengths_gk: Array | None = None
    ) -> tuple[Array, RunningMoments]:
        """Return the shaped rewards, shape (groups, K), and the statistics after this batch.

        Args:
            rewards_gk: Rewards of one task, shape (groups, K), K >= 2.
            state: The statistics before this batch; ``RunningMoments()`` at the start.
            lengths_gk: Completion tokens, shape (groups, K); needed by a length penalty alone.

        Raises:
            ValueError: Bad rewards, or a length penalty without lengths.
        """
        xp, rewards_gk = check_rewards(rewards_gk)
        if self.length is not None:
            if lengths_gk is None:
                raise ValueError("a length penalty needs lengths_gk")
            rewards_gk = rewards_gk + self.length(rewards_gk, check_lengths(lengths_gk, rewards_gk))
        if self.zscore is not None:
            state = self.zscore.update(state, rewards_gk)
            rewards_gk = self.zscore.apply(state, rewards_gk)
        if self.scale != 1.0:
            rewards_gk = rewards_gk * self.scale
        if self.clip is not None:
            rewards_gk = xp.clip(rewards_gk, *self.clip)
        return rewards_gk, state


LENGTH_PENALTIES: Mapping[str, type[Overlong] | type[PerToken] | type[GroupRelative]] = MappingProxyType(
    {"overlong": Overlong, "per_token": PerToken, "group_relative": GroupRelative}
)
"""Every length penalty by the name it has in a recipe."""


def make(
    *,
    length: Mapping[str, Any] | None = None,
    zscore: Mapping[str, Any] | None = None,
    scale: float = 1.0,
    clip: tuple[float, float] | None = None,
    budget: int | None = None,
) -> Shaper:
    """Return the shaper with these settings, as a recipe section holds them.

    Args:
        length: ``kind``, a key of :data:`LENGTH_PENALTIES`, and its settings.
        zscore: Settings of :class:`ZScore`.
        scale: Factor.
        clip: Lowest and highest reward.
        budget: Completion budget in tokens, for a length penalty whose ``max_length`` is ``None``.

    Raises:
        ValueError: Unknown kind, or settings that do not fit it.
    """
    penalty: LengthPenalty | None = None
    if length is not None:
        settings = dict(length)
        kind = settings.pop("kind", None)
        if kind not in LENGTH_PENALTIES:
            raise ValueError(f"unknown length penalty {kind!r}; known: {', '.join(LENGTH_PENALTIES)}")
        if "max_length" in settings and settings["max_length"] is None:
            if budget is None:
                raise ValueError(f"length penalty {kind!r} needs max_length, or a completion budget to take it from")
            settings["max_length"] = budget
        try:
            penalty = LENGTH_PENALTIES[kind](**settings)
        except TypeError as error:
            raise ValueError(f"length penalty {kind!r}: {error}") from None
    return Shaper(length=penalty, zscore=None if zscore is None else ZScore(**zscore), scale=scale, clip=clip)


def winsorise(values: Array, *, tail: float) -> Array:
    """Pull the ``floor(tail * n)`` lowest and highest of ``n`` values in to the next one (Tukey 1962).

    Args:
        values: Any shape.
        tail: Share of the values pulled in on either side, in [0, 0.5).

    Raises:
        ValueError: ``tail`` is out of range, or a value is not finite.
    """
    xp, values = as_floats("values", values)
    if not 0 <= tail < 0.5:
        raise ValueError(f"tail must be in [0, 0.5), got {tail!r}")
    ordered = xp.sort(xp.reshape(values, (-1,)))
    count = math.floor(tail * ordered.shape[0])
    return xp.minimum(xp.maximum(values, ordered[count]), ordered[ordered.shape[0] - 1 - count])
