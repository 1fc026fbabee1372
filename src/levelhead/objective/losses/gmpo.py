"""GMPO: the geometric mean of clipped token ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from levelhead.objective.losses.base import Clipped, Surrogate
from levelhead.objective.numerics import bounded_exp

if TYPE_CHECKING:
    from levelhead.objective.losses.inputs import Inputs


class Gmpo(Clipped):
    """``A exp(mean_t clipped log r_t)``: the geometric mean of clipped token ratios (Zhao et al. 2025).

    Log-ratios are clipped to ``[-low, high]`` on the side where the surrogate would grow.  Each value is spread over
    the sequence's tokens, so that ``sequence_mean`` gives the paper's objective.
    """

    name = "gmpo"
    by_sequence = True
    clip_low: float = Field(0.4, ge=0, le=1e6)
    """The log-ratio is clipped below ``-clip_low``."""
    clip_high: float = Field(0.4, ge=0, le=1e6)
    """The log-ratio is clipped above ``clip_high``."""

    def surrogate(self, inputs: Inputs) -> Surrogate:
        """Return the advantage times the mean ratio of the sequence at each of its tokens."""
        sign_nt, log_ratio_nt = inputs.advantages_nt.sign(), inputs.log_ratio_nt
        clipped_nt = log_ratio_nt.clamp(-self.clip_low, self.clip_high)
        bounded_nt = sign_nt * (sign_nt * log_ratio_nt).minimum(sign_nt * clipped_nt)
        value_nt = inputs.advantages_nt * bounded_exp(inputs.sequence_mean(bounded_nt))
        low_nt = (log_ratio_nt < -self.clip_low) & (inputs.advantages_nt < 0)
        high_nt = (log_ratio_nt > self.clip_high) & (inputs.advantages_nt > 0)
        return Surrogate(value_nt, inputs.clip_stats(low_nt, high_nt) | inputs.ratio_stats())
