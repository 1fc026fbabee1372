"""SAPO: a soft gate in the place of the clip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from levelhead.objective.losses.base import Loss, Surrogate

if TYPE_CHECKING:
    from levelhead.objective.losses.inputs import Inputs


class Sapo(Loss):
    """``4 / tau sigmoid(tau (r - 1)) A``, tau by the sign of A (Gao et al. 2025): a soft gate instead of a clip.

    On policy the gate's slope is 1, so the gradient is that of ``r A``; the value there is ``2 A / tau``.
    """

    name = "sapo"
    tau_pos: float = Field(1.0, gt=0, le=1e3)
    """SAPO's temperature where the advantage is positive."""
    tau_neg: float = Field(1.05, gt=0, le=1e3)
    """SAPO's temperature elsewhere."""

    def surrogate(self, inputs: Inputs) -> Surrogate:
        """Return the advantage times the sigmoid gate of the ratio, (n, t), to be maximised."""
        advantages_nt = inputs.advantages_nt
        tau_nt = advantages_nt.new_full(advantages_nt.shape, self.tau_neg).masked_fill(advantages_nt > 0, self.tau_pos)
        gate_nt = (tau_nt * (inputs.ratio_nt - 1)).sigmoid() * 4 / tau_nt
        return Surrogate(gate_nt * advantages_nt, inputs.ratio_stats())
