"""The aggregators of task gradients by name."""

from __future__ import annotations

from typing import Any

from levelhead.objective.aggregation.aggregators import Aggregator
from levelhead.objective.registry import build, owners, registry

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
