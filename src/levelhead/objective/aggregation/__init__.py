"""Merging the gradients of several tasks that share one policy.

What computes on tensors is imported on first use: a recipe's keys are read from the aggregators where there is no
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from levelhead.objective.aggregation.aggregators import AGGREGATORS, Aggregator, make_aggregator

if TYPE_CHECKING:
    from levelhead.objective.aggregation.buffers import gramian
    from levelhead.objective.aggregation.merger import ConflictMonitor, GradientMerger, MergeReport, weights

__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "ConflictMonitor",
    "GradientMerger",
    "MergeReport",
    "gramian",
    "make_aggregator",
    "weights",
]

_LAZY = {
    "gramian": "buffers",
    **dict.fromkeys(("ConflictMonitor", "GradientMerger", "MergeReport", "weights"), "merger"),
}


def __getattr__(name: str) -> Any:
    """Import what needs torch when a name of it is asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
