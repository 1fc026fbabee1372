"""CISPO: the clipped ratio as a weight of the plain policy gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from levelhead import metrics as metric
from levelhead.objective.losses.base import Clipped, Surrogate

if TYPE_CHECKING:
    from levelhead.objective.losses.inputs import Inputs


class Cispo(Clipped):
    """``sg[clip(r, 1 - low, 1 + high)] A logp`` (MiniMax-M1 2025): a clipped token keeps its gradient.

    ``low`` of 1, the default, leaves the ratio unbounded below, as the paper does; the cap of 5 is that of
    Khatri et al. 2025.
    """

    name = "cispo"
    clips_tokens = True
    clip_low: float = Field(1.0, ge=0, le=1e6)
    """The ratio is clipped below ``1 - clip_low``."""
    clip_high: float = Field(4.0, ge=0, le=1e6)
    """The ratio is clipped above ``1 + clip_high``."""

    def surrogate(self, inputs: Inputs) -> Surrogate:
        """Return the clipped ratio, without gradient, times ``A logp``."""
        ratio_nt = inputs.ratio_nt.detach()
        weight_nt = ratio_nt.clamp(max(1 - self.clip_low, 0.0), 1 + self.clip_high)
        stats = {metric.CISPO_CLIP_RATIO: inputs.mean((ratio_nt > 1 + self.clip_high) & (inputs.advantages_nt > 0))}
        low_nt, high_nt = ratio_nt < 1 - self.clip_low, ratio_nt > 1 + self.clip_high
        stats |= inputs.clip_stats(low_nt, high_nt)
        return Surrogate(weight_nt * inputs.advantages_nt * inputs.logp_nt, stats | inputs.ratio_stats())
