"""Surrogates with one ratio a sequence: GSPO, its token variant, and GMPO.

Each value is spread over the sequence's tokens, so that ``sequence_mean`` gives the paper's objective.
"""

from __future__ import annotations

import torch
from torch import Tensor

from levelhead.objective.losses.inputs import Inputs, Surrogate
from levelhead.objective.losses.options import Options
from levelhead.objective.numerics import bounded_exp


def gspo(inputs: Inputs, options: Options) -> Surrogate:
    """``min(s A, clip(s, 1 - low, 1 + high) A)``, ``s = exp(mean_t log r_t)`` (Zheng et al. 2025, sec. 4.1).

    Raises:
        ValueError: If advantages come one a token.
    """
    if not inputs.by_sequence:
        raise ValueError("gspo takes one advantage a sequence; use gspo_token for one a token")
    ratio_nt = bounded_exp(inputs.sequence_mean(inputs.log_ratio_nt)).expand_as(inputs.mask_nt)
    return _clip(inputs, options, ratio_nt)


def gspo_token(inputs: Inputs, options: Options) -> Surrogate:
    """GSPO with ``s_t = sg[s] r_t / sg[r_t]``: the sequence's ratio, each token's gradient (Zheng et al. 2025).

    For advantages constant over a sequence, value and gradient are GSPO's.
    """
    logp_nt = inputs.logp_nt
    log_s_n1 = inputs.sequence_mean(inputs.log_ratio_nt).detach()
    return _clip(inputs, options, bounded_exp(log_s_n1 + logp_nt - logp_nt.detach()))


def gmpo(inputs: Inputs, options: Options) -> Surrogate:
    """``A exp(mean_t clipped log r_t)``: the geometric mean of clipped token ratios (Zhao et al. 2025).

    Log-ratios are clipped to ``[-low, high]`` on the side where the surrogate would grow.

    Raises:
        ValueError: If advantages come one a token.
    """
    if not inputs.by_sequence:
        raise ValueError("gmpo takes one advantage a sequence")
    sign_nt, log_ratio_nt = inputs.advantages_nt.sign(), inputs.log_ratio_nt
    clipped_nt = log_ratio_nt.clamp(-options.clip_low, options.clip_high)
    kept_nt = sign_nt * torch.minimum(sign_nt * log_ratio_nt, sign_nt * clipped_nt)
    value_nt = inputs.advantages_nt * bounded_exp(inputs.sequence_mean(kept_nt))
    low_nt = (log_ratio_nt < -options.clip_low) & (inputs.advantages_nt < 0)
    high_nt = (log_ratio_nt > options.clip_high) & (inputs.advantages_nt > 0)
    return Surrogate(value_nt, inputs.clip_stats(low_nt, high_nt) | inputs.ratio_stats())


def _clip(inputs: Inputs, options: Options, ratio_nt: Tensor) -> Surrogate:
    advantages_nt = inputs.advantages_nt
    clipped_nt = ratio_nt.clamp(1 - options.clip_low, 1 + options.clip_high)
    value_nt = torch.minimum(ratio_nt * advantages_nt, clipped_nt * advantages_nt)
    low_nt = (ratio_nt < 1 - options.clip_low) & (advantages_nt < 0)
    high_nt = (ratio_nt > 1 + options.clip_high) & (advantages_nt > 0)
    return Surrogate(value_nt, inputs.clip_stats(low_nt, high_nt) | inputs.ratio_stats())
