"""Advantages: rewards of groups of rollouts become credit, by name.

``compute("grpo", rewards_gk, ddof=0, eps=0.0).values_gk``.  Arrays are numpy arrays or torch tensors; the result
is of the kind that went in.  Equal rewards in a group never become an advantage: see :func:`base.contrast`.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from levelhead.objective.advantages.base import Advantages, Array
from levelhead.objective.advantages.estimator import Estimator, RewardBatch, Standardised
from levelhead.objective.advantages.groupwise import STRUCTURE_WEIGHTS
from levelhead.objective.registry import build, registry

ADVANTAGES = registry(
    "levelhead.objective.advantages",
    Estimator,
    [
        "groupwise:Grpo",
        "groupwise:DrGrpo",
        "groupwise:Rloo",
        "batchwise:Batch",
        "batchwise:ReinforcePp",
        "batchwise:ReinforcePpBaseline",
        "batchwise:Gdpo",
        "groupwise:Opo",
        "tokenwise:Gtpo",
        "groupwise:WorkflowAware",
        "subsets:PassAtK",
        "subsets:Pkpo",
        "turnwise:ReturnToGo",
        "turnwise:LooGae",
        "turnwise:MtGrpo",
        "turnwise:GiGpo",
    ],
)
"""Every estimator by the name that it has in a recipe."""

__all__ = [
    "ADVANTAGES",
    "STRUCTURE_WEIGHTS",
    "Advantages",
    "Estimator",
    "RewardBatch",
    "Standardised",
    "compute",
    "inputs",
    "names",
]


def names() -> tuple[str, ...]:
    """Return the names that :func:`compute` knows."""
    return tuple(ADVANTAGES)


def inputs(name: str) -> frozenset[str]:
    """Return the arrays that estimator ``name`` needs besides the rewards, as keywords of :func:`compute`.

    Raises:
        ValueError: No estimator has this name.
    """
    return _variant(name).needs


def compute(
    estimator: Estimator | str,
    rewards_gk: Array,
    *,
    ddof: int | None = None,
    eps: float | None = None,
    clip: float | None = None,
    **extras: Any,
) -> Advantages:
    """Turn rewards into advantages with an estimator.

    Estimators that divide by no standard deviation leave ``ddof`` and ``eps`` aside.

    Args:
        estimator: The estimator, which brings its settings, or one of :func:`names`.
        rewards_gk: Rewards, shape (groups, K), K >= 2: numpy array, torch tensor or nested lists.
        ddof: Degrees of freedom of every standard deviation: 1 sample, 0 population; ``None`` leaves it as it is, which
            for a named one is 1, as in TRL.
        eps: Added to every standard deviation; ``None`` leaves it as it is, which for a named one is 1e-4, as in TRL.
        clip: Bound on the absolute advantage, applied last; ``None`` leaves it unbounded.
        **extras: Arrays of :class:`RewardBatch`, of which :func:`inputs` lists what it cannot do without, and settings
            that take the place of its own.

    Raises:
        ValueError: Unknown name, a missing or unknown extra, a setting out of range, K < 2, a reward that is not
            finite, mismatched shapes.
    """
    if ddof not in (None, 0, 1):
        raise ValueError(f"ddof must be 0 (population) or 1 (sample), got {ddof!r}")
    if eps is not None and not eps >= 0:
        raise ValueError(f"eps must be 0 or more, got {eps!r}")
    if clip is not None and not clip > 0:
        raise ValueError(f"clip must be above 0, got {clip!r}; leave it out for no bound")
    variant = _variant(estimator) if isinstance(estimator, str) else type(estimator)
    label = variant.name or variant.__name__
    settings = set(variant.model_fields) - {"ddof", "eps"}
    arrays = variant.needs | variant.takes
    if missing := sorted(variant.needs - extras.keys()):
        raise ValueError(f"advantage estimator {label!r} needs {', '.join(missing)}")
    if unknown := sorted(extras.keys() - settings - arrays):
        accepted = ", ".join(sorted(settings | arrays)) or "no extras"
        raise ValueError(f"advantage estimator {label!r} takes no {unknown[0]!r}; it takes {accepted}")
    values = {key: value for key, value in extras.items() if key in settings}
    shared = (("ddof", ddof), ("eps", eps))
    values |= {key: value for key, value in shared if key in variant.model_fields and value is not None}
    if isinstance(estimator, str):
        estimator = build(variant, values, f"advantage estimator {label!r}")
    elif values:
        estimator = build(variant, estimator.model_dump() | values, f"advantage estimator {label!r}")
    batch = RewardBatch(rewards_gk, **{key: value for key, value in extras.items() if key in arrays})
    return _clipped(estimator.estimate(batch), clip)


def _variant(name: str) -> type[Estimator]:
    try:
        return ADVANTAGES[name]
    except KeyError:
        raise ValueError(f"unknown advantage estimator {name!r}; known: {', '.join(ADVANTAGES)}") from None


def _clipped(advantages: Advantages, clip: float | None) -> Advantages:
    if clip is None:
        return advantages
    xp = array_namespace(advantages.values_gk)
    finer = {"tokens_gkt": advantages.tokens_gkt, "turns_gkn": advantages.turns_gkn}
    return Advantages(
        values_gk=xp.clip(advantages.values_gk, -clip, clip),
        has_signal_g=advantages.has_signal_g,
        **{name: None if array is None else xp.clip(array, -clip, clip) for name, array in finer.items()},
    )
