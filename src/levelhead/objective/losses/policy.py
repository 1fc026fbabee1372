"""The policy loss by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from levelhead.objective.losses.clipped import cispo, ppo_clip, reinforce, sapo
from levelhead.objective.losses.covariance import clip_cov, kl_cov
from levelhead.objective.losses.inputs import Inputs, Surrogate, check
from levelhead.objective.losses.options import Options, default_clip
from levelhead.objective.losses.sequence import gmpo, gspo, gspo_token
from levelhead.objective.terms import as_loss

LOSSES: Mapping[str, Callable[[Inputs, Options], Surrogate]] = {
    "ppo_clip": ppo_clip,
    "reinforce": reinforce,
    "gspo": gspo,
    "gspo_token": gspo_token,
    "cispo": cispo,
    "gmpo": gmpo,
    "sapo": sapo,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
}
"""Surrogates by name."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A surrogate in both conventions, with its statistics.

    Attributes:
        surrogate_nt: Natural value a token, to be maximised, shape (n, t); 0 where masked.
        per_token_nt: The field's loss, to be minimised: the same through :func:`levelhead.objective.terms.as_loss`.
        stats: Scalar float32 tensors, under TRL's names where TRL has one.  Names ending in ``/mean`` or ``_mean`` are
            means over the unmasked tokens, ``/max`` a maximum.
    """

    surrogate_nt: Tensor
    per_token_nt: Tensor
    stats: Mapping[str, Tensor]


def policy_loss(
    name: str,
    logp_nt: Tensor,
    old_logp_nt: Tensor,
    advantages: Tensor,
    mask_nt: Tensor,
    *,
    clip_low: float | None = None,
    clip_high: float | None = None,
    dual_clip: float | None = None,
    weight_nt: Tensor | None = None,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    cov_fraction: float = 2e-4,
    cov_low: float = 1.0,
    cov_high: float = 5.0,
    cov_kl: float = 1.0,
    generator: torch.Generator | None = None,
) -> PolicyLoss:
    """Return the policy loss of a batch of n sequences of t completion tokens, padded on the right.

    Args:
        name: One of ``LOSSES``.
        logp_nt: Log-probabilities of the drawn tokens under the policy, with gradient.
        old_logp_nt: The same under the policy that drew them; no gradient flows into it.
        advantages: One a sequence, shape (n,), or one a token, shape (n, t).
        mask_nt: 1 for tokens that count, 0 for padding and tokens left out.
        clip_low: The ratio is clipped below ``1 - clip_low``; ``None`` is the method's own default.
        clip_high: The ratio is clipped above ``1 + clip_high``; ``None`` is the method's own default.
        dual_clip: Bound on the ratio where the advantage is negative, above 1; ``ppo_clip`` and ``clip_cov``.
        weight_nt: Detached factor of each token's surrogate: importance weights, a top-entropy mask, or both.
        tau_pos: SAPO's temperature where the advantage is positive.
        tau_neg: SAPO's temperature elsewhere.
        cov_fraction: Share of the tokens that ``clip_cov`` detaches and ``kl_cov`` penalises; at least one token.
        cov_low: ``clip_cov`` draws among tokens whose covariance is above this,
        cov_high: and below this.
        cov_kl: Coefficient of ``kl_cov``.
        generator: Source of randomness of ``clip_cov``.

    Raises:
        ValueError: If the name is unknown, shapes differ, an input is not finite, an option is out of range or does
            not apply, or nothing is unmasked.
    """
    if name not in LOSSES:
        raise ValueError(f"unknown policy loss {name!r}; choose one of {', '.join(LOSSES)}")
    low, high = default_clip(name, clip_low, clip_high)
    options = Options(low, high, dual_clip, tau_pos, tau_neg, cov_fraction, cov_low, cov_high, cov_kl, generator)
    if dual_clip is not None and name not in ("ppo_clip", "clip_cov"):
        raise ValueError(f"dual_clip applies to ppo_clip and clip_cov, not to {name}")
    inputs = check(logp_nt, old_logp_nt, advantages, mask_nt)
    result = LOSSES[name](inputs, options)
    value_nt = result.value_nt if weight_nt is None else result.value_nt * _checked_weight(weight_nt, logp_nt)
    surrogate_nt = torch.where(inputs.mask_nt, value_nt, torch.zeros_like(value_nt))
    return PolicyLoss(surrogate_nt, as_loss(surrogate_nt, "maximize"), result.stats)


def _checked_weight(weight_nt: Tensor, logp_nt: Tensor) -> Tensor:
    if weight_nt.shape != logp_nt.shape:
        raise ValueError(f"policy loss: weight needs shape {tuple(logp_nt.shape)}, got {tuple(weight_nt.shape)}")
    return weight_nt.detach()
