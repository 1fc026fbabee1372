"""GSPO and its token variant: one ratio a sequence.

Each value is spread over the sequence's tokens, so that ``sequence_mean`` gives the paper's objective.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from levelhead.objective.losses.base import Clipped, Surrogate
from levelhead.objective.losses.ppo import clipped
from levelhead.objective.numerics import bounded_exp

if TYPE_CHECKING:
    from levelhead.objective.losses.inputs import Inputs


class Gspo(Clipped):
    """``min(s A, clip(s, 1 - low, 1 + high) A)``, ``s = exp(mean_t log r_t)`` (Zheng et al. 2025, sec. 4.1)."""

    name = "gspo"
    by_sequence = True
    clip_low: float = Field(3e-4, ge=0, le=1e6)
    """The ratio of the sequence is clipped below ``1 - clip_low``."""
    clip_high: float = Field(4e-4, ge=0, le=1e6)
    """The ratio of the sequence is clipped above ``1 + clip_high``."""

    def surrogate(self, inputs: Inputs) -> Surrogate:
        """Return the clipped product of the sequence at each of its tokens."""
        ratio_nt = bounded_exp(inputs.sequence_mean(inputs.log_ratio_nt)).expand_as(inputs.mask_nt)
        return clipped(self, inputs, ratio_nt)


class GspoToken(Gspo):
    """GSPO with ``s_t = sg[s] r_t / sg[r_t]``: the sequence's ratio, each token's gradient (Zheng et al. 2025).

    For advantages constant over a sequence, value and gradient are GSPO's.
    """

    name = "gspo_token"
    by_sequence = False

    def surrogate(self, inputs: Inputs) -> Surrogate:
        """Return the clipped product of each token."""
        logp_nt = inputs.logp_nt
        log_s_n1 = inputs.sequence_mean(inputs.log_ratio_nt).detach()
        return clipped(self, inputs, bounded_exp(log_s_n1 + logp_nt - logp_nt.detach()))
