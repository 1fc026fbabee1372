"""Advantages: rewards of groups of rollouts become credit, by name.

``compute("grpo", rewards_gk, ddof=0, eps=0.0).values_gk``.  Arrays are numpy arrays or torch tensors; the result
is of the kind that went in.  Equal rewards in a group never become an advantage: see :func:`base.contrast`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from array_api_compat import array_namespace

from levelhead.objective.advantages.base import Advantages, Array
from levelhead.objective.advantages.batchwise import batch, gdpo, reinforce_pp, reinforce_pp_baseline
from levelhead.objective.advantages.groupwise import STRUCTURE_WEIGHTS, dr_grpo, grpo, opo, rloo, workflow_aware
from levelhead.objective.advantages.subsets import pass_at_k, pkpo
from levelhead.objective.advantages.tokenwise import gtpo

ADVANTAGES: Mapping[str, Callable[..., Advantages]] = MappingProxyType(
    {
        "grpo": grpo,
        "dr_grpo": dr_grpo,
        "rloo": rloo,
        "batch": batch,
        "reinforce_pp": reinforce_pp,
        "reinforce_pp_baseline": reinforce_pp_baseline,
        "gdpo": gdpo,
        "opo": opo,
        "gtpo": gtpo,
        "workflow_aware": workflow_aware,
        "pass_at_k": pass_at_k,
        "pkpo": pkpo,
    }
)
"""Every estimator by name."""

__all__ = ["ADVANTAGES", "STRUCTURE_WEIGHTS", "Advantages", "compute", "inputs", "names"]


def names() -> tuple[str, ...]:
    """Return the names that :func:`compute` knows."""
    return tuple(ADVANTAGES)


def inputs(name: str) -> frozenset[str]:
    """Return the arrays that estimator ``name`` needs besides the rewards, as keywords of :func:`compute`.

    Raises:
        ValueError: No estimator has this name.
    """
    parameters = inspect.signature(_find(name)).parameters.values()
    required = (p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty)
    return frozenset(required)


def compute(
    name: str, rewards_gk: Array, *, ddof: int = 1, eps: float = 1e-4, clip: float | None = None, **extras: Any
) -> Advantages:
    """Turn rewards into advantages with the estimator called ``name``.

    The defaults of ``ddof`` and ``eps`` are TRL's (sample standard deviation, 1e-4).  Estimators that divide by no
    standard deviation leave both aside.

    Args:
        name: One of :func:`names`.
        rewards_gk: Rewards, shape (groups, K), K >= 2: numpy array, torch tensor or nested lists.
        ddof: Degrees of freedom of every standard deviation: 1 sample, 0 population.
        eps: Added to every standard deviation.
        clip: Bound on the absolute advantage, applied last; ``None`` leaves it unbounded.
        **extras: What else the estimator takes; :func:`inputs` lists what it cannot do without.

    Raises:
        ValueError: Unknown name, a missing or unknown extra, K < 2, a reward that is not finite, mismatched shapes.
    """
    estimator = _find(name)
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 (population) or 1 (sample), got {ddof!r}")
    if not eps >= 0:
        raise ValueError(f"eps must be 0 or more, got {eps!r}")
    if clip is not None and not clip > 0:
        raise ValueError(f"clip must be above 0, got {clip!r}; leave it out for no bound")
    parameters = inspect.signature(estimator).parameters
    shared = {key: value for key, value in (("ddof", ddof), ("eps", eps)) if key in parameters}
    if missing := sorted(inputs(name) - extras.keys()):
        raise ValueError(f"advantage estimator {name!r} needs {', '.join(missing)}")
    if unknown := sorted(extras.keys() - parameters.keys()):
        accepted = sorted(set(parameters) - {"rewards_gk", "ddof", "eps"})
        raise ValueError(
            f"advantage estimator {name!r} takes no {unknown[0]!r}; it takes {', '.join(accepted) or 'no extras'}"
        )
    return _clipped(estimator(rewards_gk, **shared, **extras), clip)


def _find(name: str) -> Callable[..., Advantages]:
    try:
        return ADVANTAGES[name]
    except KeyError:
        raise ValueError(f"unknown advantage estimator {name!r}; known: {', '.join(ADVANTAGES)}") from None


def _clipped(advantages: Advantages, clip: float | None) -> Advantages:
    if clip is None:
        return advantages
    xp = array_namespace(advantages.values_gk)
    tokens = advantages.tokens_gkt
    return Advantages(
        values_gk=xp.clip(advantages.values_gk, -clip, clip),
        live_g=advantages.live_g,
        tokens_gkt=None if tokens is None else xp.clip(tokens, -clip, clip),
    )
