"""REINFORCE and PPO's clipped surrogate."""

from __future__ import annotations

import torch

from levelhead.objective.losses.inputs import Inputs, Surrogate
from levelhead.objective.losses.options import Options


def reinforce(inputs: Inputs, options: Options) -> Surrogate:  # noqa: ARG001
    """``A * logp`` (Williams 1992): no ratio, no clipping."""
    return Surrogate(inputs.advantages_nt * inputs.logp_nt)


def ppo_clip(inputs: Inputs, options: Options) -> Surrogate:
    """``min(r A, clip(r, 1 - low, 1 + high) A)`` (Schulman et al. 2017, eq. 7; ranges apart as in DAPO).

    With ``dual_clip`` c, where A < 0 the value is at least ``c A`` (Ye et al. 2020, eq. 5).
    """
    advantages_nt = inputs.advantages_nt
    ratio_nt = inputs.log_ratio_nt.exp()
    clipped_nt = ratio_nt.clamp(1 - options.clip_low, 1 + options.clip_high)
    value_nt = torch.minimum(ratio_nt * advantages_nt, clipped_nt * advantages_nt)
    low_nt = (ratio_nt < 1 - options.clip_low) & (advantages_nt < 0)
    high_nt = (ratio_nt > 1 + options.clip_high) & (advantages_nt > 0)
    stats = {
        "clip_ratio/low_mean": inputs.mean(low_nt),
        "clip_ratio/high_mean": inputs.mean(high_nt),
        "clip_ratio/region_mean": inputs.mean(low_nt | high_nt),
    }
    if options.dual_clip is not None:
        floor_nt = options.dual_clip * advantages_nt
        stats["clip_ratio/dual_mean"] = inputs.mean((advantages_nt < 0) & (value_nt < floor_nt))
        value_nt = torch.where(advantages_nt < 0, torch.maximum(value_nt, floor_nt), value_nt)
    return Surrogate(value_nt, stats)
