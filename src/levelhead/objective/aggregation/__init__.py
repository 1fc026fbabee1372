"""Merging the gradients of several tasks that share one policy.

What computes on tensors is imported on first use: a recipe's keys are read from the aggregators where there is no
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from levelhead.objective.aggregation.aggregators import Aggregator
from levelhead.objective.registry import build, owners, registry

if TYPE_CHECKING:
    from levelhead.objective.aggregation.buffers import gramian
    from levelhead.objective.aggregation.merger import GradientMerger, MergeReport
    from levelhead.objective.aggregation.monitor import ConflictMonitor
    from levelhead.objective.aggregation.weighting import weights

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
    "GradientMerger": "merger",
    "MergeReport": "merger",
    "ConflictMonitor": "monitor",
    "weights": "weighting",
}

AGGREGATORS = registry(
    "levelhead.objective.aggregation",
    Aggregator,
    [
        "aggregators:Sum",
        "aggregators:Mean",
        "aggregators:CaGrad",
        "aggregators:PcGrad",
        "aggregators:UpGrad",
        "aggregators:Mgda",
        "aggregators:AlignedMtl",
        "aggregators:NashMtl",
    ],
)
"""Every aggregator by the name that it has in a recipe."""


def make_aggregator(name: str, **settings: Any) -> Aggregator:
    """Return the aggregator called ``name``; settings that only others have are left aside.

    Raises:
        ValueError: Unknown name, or a setting that none has or that is out of range.
    """
    if name not in AGGREGATORS:
        raise ValueError(f"unknown aggregator {name!r}; choose one of {', '.join(AGGREGATORS)}")
    own = {key: value for key, value in settings.items() if key in AGGREGATORS[name].model_fields}
    strange = {key: value for key, value in settings.items() if not owners(AGGREGATORS, key)}
    return build(AGGREGATORS[name], own | strange, f"aggregator {name}")


def __getattr__(name: str) -> Any:
    """Import what needs torch when a name of it is asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
