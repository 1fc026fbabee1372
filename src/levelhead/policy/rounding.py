"""How far rounding alone drives two computations of one log-probability apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from levelhead.policy.policy import Policy


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two computations of one log-probability may lie apart, in nats.

    Attributes:
        mean: Over the tokens of a batch.
        most: Of a single token.
    """

    mean: float
    most: float


_TOLERANCES = {
    torch.float32: Tolerance(2e-4, 2e-3),
    torch.float16: Tolerance(1e-2, 0.15),
    torch.bfloat16: Tolerance(5e-2, 0.75),
}


def tolerance(policy: Policy) -> Tolerance:
    """Return what rounding explains in the policy's present compute type, or in that of its weights if coarser."""
    coarsest = max((policy.compute_dtype, policy.base.dtype), key=lambda dtype: _TOLERANCES[dtype].most)
    return _TOLERANCES[coarsest]
