"""The policy loss by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from levelhead.objective.losses.clipped import ppo_clip, reinforce
from levelhead.objective.losses.inputs import check
from levelhead.objective.losses.options import Options
from levelhead.objective.terms import as_loss

LOSSES = {"ppo_clip": ppo_clip, "reinforce": reinforce}


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A surrogate in both conventions, with its statistics.

    Attributes:
        surrogate_nt: Natural value a token, to be maximised, shape (n, t); 0 where masked.
        per_token_nt: The field's loss, to be minimised: the same through :func:`levelhead.objective.terms.as_loss`.
        stats: Scalar float32 tensors under TRL's names, means over the unmasked tokens.
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
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> PolicyLoss:
    """Return the policy loss of a batch of n sequences of t completion tokens, padded on the right.

    Args:
        name: One of ``LOSSES``.
        logp_nt: Log-probabilities of the drawn tokens under the policy, with gradient.
        old_logp_nt: The same under the policy that drew them; no gradient flows into it.
        advantages: One a sequence, shape (n,), or one a token, shape (n, t).
        mask_nt: 1 for tokens that count, 0 for padding and tokens left out.
        clip_low: The ratio is clipped below ``1 - clip_low``.
        clip_high: The ratio is clipped above ``1 + clip_high``.
        dual_clip: Bound on the ratio where the advantage is negative, above 1 (Ye et al. 2020, eq. 5).

    Raises:
        ValueError: If the name is unknown, shapes differ, an input is not finite, or nothing is unmasked.
    """
    if name not in LOSSES:
        raise ValueError(f"unknown policy loss {name!r}; choose one of {', '.join(LOSSES)}")
    inputs = check(logp_nt, old_logp_nt, advantages, mask_nt)
    result = LOSSES[name](inputs, Options(clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip))
    return PolicyLoss(result.value_nt, as_loss(result.value_nt, "maximize"), result.stats)
