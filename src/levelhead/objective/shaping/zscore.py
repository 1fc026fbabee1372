"""The running z-score: rewards as standard deviations from their mean over batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import Field

from levelhead.objective.advantages.base import Array, as_floats
from levelhead.objective.advantages.estimator import RewardBatch
from levelhead.objective.shaping.base import Shaper


@dataclass(frozen=True, slots=True)
class RunningMoments:
    """Exponentially weighted mean and variance of rewards: the state of a :class:`ZScore`.

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


class ZScore(Shaper):
    """Rewards as standard deviations from their running mean, ``(r - mean) / (std + eps)``.

    The statistics are exponentially weighted over batches, every batch winsorised first, so that one outlier moves
    neither.  Early batches are weighted as if there had been no start (the bias correction of Adam).
    """

    decay: float = Field(0.99, ge=0, lt=1)
    """Weight of the past at every batch."""
    tail: float = Field(0.01, ge=0, lt=0.5)
    """Share of a batch's rewards pulled in on either side before they enter the statistics."""
    limit: float | None = Field(5.0, gt=0, le=1e6)
    """Bound on the absolute result; null leaves it unbounded."""
    eps: float = Field(1e-4, ge=0, le=1e3)
    """Added to the standard deviation."""

    def begin(self) -> dict[str, Any]:
        """Return the moments before the first batch."""
        return RunningMoments().to_json()

    def shape(self, batch: RewardBatch, state: Mapping[str, Any]) -> tuple[Array, dict[str, Any]]:
        """Return the z-scores under the moments that include this batch, and those moments."""
        moments = self.update(RunningMoments.from_json(state), batch.rewards_gk)
        return self.apply(moments, batch.rewards_gk), moments.to_json()

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
