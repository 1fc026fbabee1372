"""The policy loss of a batch: inputs checked, the surrogate, weights of tokens, and the sign."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from levelhead.objective.losses.base import Loss
from levelhead.objective.losses.inputs import check
from levelhead.objective.losses.registry import make_loss
from levelhead.objective.registry import build
from levelhead.objective.terms import as_loss


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
    loss: Loss | str,
    logp_nt: Tensor,
    old_logp_nt: Tensor,
    advantages: Tensor,
    mask_nt: Tensor,
    *,
    weight_nt: Tensor | None = None,
    generator: torch.Generator | None = None,
    validate: bool = True,
    places_m: Tensor | None = None,
    **knobs: Any,
) -> PolicyLoss:
    """Return the policy loss of a batch of n sequences of t completion tokens, padded on the right.

    Args:
        loss: The loss, or the name of one in ``LOSSES``.
        logp_nt: Log-probabilities of the sampled tokens under the policy, with gradient.
        old_logp_nt: The same under the policy that sampled them; no gradient flows into it.
        advantages: One a sequence, shape (n,), or one a token, shape (n, t).
        mask_nt: 1 for tokens that count, 0 for padding and tokens left out.
        weight_nt: Detached factor of each token's surrogate: importance weights, a top-entropy mask, or both.
        generator: Source of randomness, for a loss that samples.
        validate: Whether to look at the values of the tensors, for which a GPU has to be waited; a caller that knows
            them to be finite leaves it out.
        places_m: Flat positions of the unmasked tokens, in order, for the same reason.
        **knobs: Of a loss that is given by name; of another they take the place of its own.

    Raises:
        ValueError: If the name is unknown, shapes differ, an input is not finite, a knob is out of range or does not
            apply, nothing is unmasked, or the loss needs what it is not given.
    """
    if isinstance(loss, str):
        loss = make_loss(loss, **knobs)
    elif knobs:
        loss = build(type(loss), loss.model_dump() | knobs, f"policy loss {loss.name}")
    label = loss.name or type(loss).__name__
    inputs = check(logp_nt, old_logp_nt, advantages, mask_nt, generator, validate=validate, places_m=places_m)
    if loss.by_sequence and not inputs.by_sequence:
        raise ValueError(f"{label} takes one advantage a sequence; for one a token take another loss (gspo_token)")
    result = loss.surrogate(inputs)
    value_nt = result.value_nt
    if value_nt.shape != logp_nt.shape:
        raise ValueError(f"{label}: a surrogate needs shape {tuple(logp_nt.shape)}, got {tuple(value_nt.shape)}")
    value_nt = value_nt if weight_nt is None else value_nt * _checked_weight(weight_nt, logp_nt)
    surrogate_nt = torch.where(inputs.mask_nt, value_nt, torch.zeros_like(value_nt))
    return PolicyLoss(surrogate_nt, as_loss(surrogate_nt, "maximize"), result.stats)


def _checked_weight(weight_nt: Tensor, logp_nt: Tensor) -> Tensor:
    if weight_nt.shape != logp_nt.shape:
        raise ValueError(f"policy loss: weight needs shape {tuple(logp_nt.shape)}, got {tuple(weight_nt.shape)}")
    return weight_nt.detach()
