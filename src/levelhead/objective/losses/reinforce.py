"""REINFORCE: the policy gradient without a ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from levelhead.objective.losses.base import Loss, Surrogate

if TYPE_CHECKING:
    from levelhead.objective.losses.inputs import Inputs


class Reinforce(Loss):
    """``A logp`` (Williams 1992): no ratio, no clipping."""

    name = "reinforce"
    has_ratio = False

    def surrogate(self, inputs: Inputs) -> Surrogate:
        """Return ``A logp`` of each token, (n, t), to be maximised."""
        return Surrogate(inputs.advantages_nt * inputs.logp_nt)
