"""Policy losses by name, one class a loss; importance correction, and aggregation.

What computes on tensors is imported on first use, all of it at once: a recipe's keys are read from the losses where
there is no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from levelhead.objective.losses.base import Clipped, Loss, Surrogate
from levelhead.objective.losses.registry import LOSSES, make_loss

if TYPE_CHECKING:
    from levelhead.objective.losses.aggregation import Aggregation, aggregate, count
    from levelhead.objective.losses.importance import Correction, ImportanceWeights, importance_weights
    from levelhead.objective.losses.inputs import Inputs
    from levelhead.objective.losses.policy import PolicyLoss, policy_loss

__all__ = [
    "LOSSES",
    "Aggregation",
    "Clipped",
    "Correction",
    "ImportanceWeights",
    "Inputs",
    "Loss",
    "PolicyLoss",
    "Surrogate",
    "aggregate",
    "count",
    "importance_weights",
    "make_loss",
    "policy_loss",
]

_LAZY = {
    "aggregation": ("Aggregation", "aggregate", "count"),
    "importance": ("Correction", "ImportanceWeights", "importance_weights"),
    "inputs": ("Inputs",),
    "policy": ("PolicyLoss", "policy_loss"),
}


def __getattr__(name: str) -> Any:
    """Import what needs torch when a name of it is asked for."""
    if not any(name in names for names in _LAZY.values()):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module, names in _LAZY.items():
        loaded = import_module(f"{__name__}.{module}")
        globals().update({own: getattr(loaded, own) for own in names})
    return globals()[name]
