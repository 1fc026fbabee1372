"""PPO's clipped surrogate, and the clip range that other losses share with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from levelhead import metrics as metric
from levelhead.objective.losses.base import Clipped, Surrogate

if TYPE_CHECKING:
    from torch import Tensor

    from levelhead.objective.losses.inputs import Inputs


class PpoClip(Clipped):
    """``min(r A, clip(r, 1 - low, 1 + high) A)`` (Schulman et al. 2017, eq. 7; ranges apart as in DAPO).

    With ``dual_clip`` c, where A < 0 the value is at least ``c A`` (Ye et al. 2020, eq. 5).
    """

    name = "ppo_clip"
    clips_tokens = True
    clip_low: float = Field(0.2, ge=0, le=1e6)
    """The ratio is clipped below ``1 - clip_low``."""
    clip_high: float = Field(0.2, ge=0, le=1e6)
    """The ratio is clipped above ``1 + clip_high``."""
    dual_clip: float | None = Field(None, gt=1, le=1e6)
    """Bound on the ratio where the advantage is negative (Ye et al. 2020)."""

    def surrogate(self, inputs: Inputs) -> Surrogate:
        """Return the smaller of the two products, bounded below where ``dual_clip`` says so."""
        result = clipped(self, inputs, inputs.ratio_nt)
        value_nt, stats = result.value_nt, dict(result.stats)
        if self.dual_clip is not None:
            floor_nt = self.dual_clip * inputs.advantages_nt
            bound_nt = (inputs.advantages_nt < 0) & (value_nt < floor_nt)
            stats[metric.CLIP_DUAL] = inputs.mean(bound_nt)
            value_nt = floor_nt.where(bound_nt, value_nt)
        return Surrogate(value_nt, stats)


def clipped(loss: Clipped, inputs: Inputs, ratio_nt: Tensor) -> Surrogate:
    """Return ``min(r A, clip(r, 1 - low, 1 + high) A)`` for any ratio, shape (n, t), with clip statistics."""
    low, high = loss.clip_range
    advantages_nt = inputs.advantages_nt
    clipped_nt = ratio_nt.clamp(1 - low, 1 + high)
    value_nt = (ratio_nt * advantages_nt).minimum(clipped_nt * advantages_nt)
    low_nt = (ratio_nt < 1 - low) & (advantages_nt < 0)
    high_nt = (ratio_nt > 1 + high) & (advantages_nt > 0)
    return Surrogate(value_nt, inputs.clip_stats(low_nt, high_nt) | inputs.ratio_stats())
