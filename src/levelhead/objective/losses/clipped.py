"""Surrogates with one ratio a token: REINFORCE, PPO, CISPO and SAPO."""

from __future__ import annotations

import torch

from levelhead import metrics as metric
from levelhead.objective.losses.inputs import Inputs, Surrogate
from levelhead.objective.losses.options import Options


def reinforce(inputs: Inputs, options: Options) -> Surrogate:  # noqa: ARG001
    """``A logp`` (Williams 1992): no ratio, no clipping."""
    return Surrogate(inputs.advantages_nt * inputs.logp_nt)


def ppo_clip(inputs: Inputs, options: Options) -> Surrogate:
    """``min(r A, clip(r, 1 - low, 1 + high) A)`` (Schulman et al. 2017, eq. 7; ranges apart as in DAPO).

    With ``dual_clip`` c, where A < 0 the value is at least ``c A`` (Ye et al. 2020, eq. 5).
    """
    advantages_nt, ratio_nt = inputs.advantages_nt, inputs.ratio_nt
    clipped_nt = ratio_nt.clamp(1 - options.clip_low, 1 + options.clip_high)
    value_nt = torch.minimum(ratio_nt * advantages_nt, clipped_nt * advantages_nt)
    low_nt = (ratio_nt < 1 - options.clip_low) & (advantages_nt < 0)
    high_nt = (ratio_nt > 1 + options.clip_high) & (advantages_nt > 0)
    stats = inputs.clip_stats(low_nt, high_nt)
    if options.dual_clip is not None:
        floor_nt = options.dual_clip * advantages_nt
        bound_nt = (advantages_nt < 0) & (value_nt < floor_nt)
        stats[metric.CLIP_DUAL] = inputs.mean(bound_nt)
        value_nt = torch.where(bound_nt, floor_nt, value_nt)
    return Surrogate(value_nt, stats | inputs.ratio_stats())


def cispo(inputs: Inputs, options: Options) -> Surrogate:
    """``sg[clip(r, 1 - low, 1 + high)] A logp`` (MiniMax-M1 2025): a clipped token keeps its gradient.

    ``low`` of 1, the default, leaves the ratio unbounded below, as the paper does.
    """
    ratio_nt = inputs.ratio_nt.detach()
    weight_nt = ratio_nt.clamp(max(1 - options.clip_low, 0.0), 1 + options.clip_high)
    stats = {metric.CISPO_CLIP_RATIO: inputs.mean((ratio_nt > 1 + options.clip_high) & (inputs.advantages_nt > 0))}
    low_nt, high_nt = ratio_nt < 1 - options.clip_low, ratio_nt > 1 + options.clip_high
    stats |= inputs.clip_stats(low_nt, high_nt)
    return Surrogate(weight_nt * inputs.advantages_nt * inputs.logp_nt, stats | inputs.ratio_stats())


def sapo(inputs: Inputs, options: Options) -> Surrogate:
    """``4 / tau sigmoid(tau (r - 1)) A``, tau by the sign of A (Gao et al. 2025): a soft gate instead of a clip.

    On policy the gate's slope is 1, so the gradient is that of ``r A``; the value there is ``2 A / tau``.
    """
    tau_nt = torch.full_like(inputs.advantages_nt, options.tau_neg).masked_fill(
        inputs.advantages_nt > 0, options.tau_pos
    )
    gate_nt = torch.sigmoid(tau_nt * (inputs.ratio_nt - 1)) * 4 / tau_nt
    return Surrogate(gate_nt * inputs.advantages_nt, inputs.ratio_stats())
