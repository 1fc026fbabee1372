"""Entropy of the policy: exact from logits, or estimated from the tokens that were drawn.

The natural value is the entropy itself, in nats and never negative; whether it is raised or lowered is the business of
the term that carries it.  The bonus used in training takes entropies that the policy computes from hidden states
without full logits; these functions are for logits that already exist, and for when no logits do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BLOCK_ELEMENTS = 1 << 24
"""Probabilities held at once: 64 MiB in float32."""


def from_logits(logits: Tensor, *, temperature: float = 1.0, block_elements: int = BLOCK_ELEMENTS) -> Tensor:
    """Return the entropy of ``softmax(logits / temperature)``, shape of the logits without the last axis, float32.

    Computed in blocks, forward and again in the backward pass: beside the logits only one block of probabilities
    exists at a time.  With p the distribution and H its entropy, ``dH / dz = -p (log p + H) / temperature``.

    Args:
        logits: Shape (..., v).
        temperature: 1 for the policy itself; peers differ in whether the logged entropy is that of tempered logits.
        block_elements: Probabilities held at once.

    Raises:
        ValueError: If the temperature is not positive or a logit is not finite.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    rows = logits.reshape(-1, logits.shape[-1])
    result: Tensor = _Entropy.apply(rows, temperature, max(1, block_elements // logits.shape[-1]))  # type: ignore[no-untyped-call]
    if bool(torch.isnan(result).any()):
        raise ValueError("entropy: a logit is not finite")
    return result.reshape(logits.shape[:-1])


class _Entropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, temperature: float, block: int) -> Tensor:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        entropy = torch.empty(len(logits), dtype=dtype, device=logits.device)
        for start in range(0, len(logits), block):
            rows = slice(start, start + block)
            logp = (logits[rows].to(dtype) / temperature).log_softmax(-1)
            entropy[rows] = -(logp.exp() * logp).sum(-1)
        ctx.save_for_backward(logits, entropy)
        ctx.settings = (temperature, block)
        return entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits, entropy = ctx.saved_tensors
        temperature, block = ctx.settings
        grad = torch.empty_like(logits)
        for start in range(0, len(logits), block):
            rows = slice(start, start + block)
            logp = (logits[rows].to(entropy.dtype) / temperature).log_softmax(-1)
            slope = -logp.exp() * (logp + entropy[rows, None]) / temperature
            grad[rows] = (slope * grads[0][rows, None]).to(grad.dtype)
        return grad, None, None


def from_samples(logp_nt: Tensor) -> Tensor:
    """Return an unbiased estimate of each token's entropy from its own log-probability, shape (n, t).

    The value is ``-logp``; the gradient is ``-logp grad(logp)``, whose mean over the policy's own draws is the
    gradient of the entropy.  The gradient of ``-logp`` itself has mean zero: a bonus on it does nothing but add noise.
    """
    surprise_nt = -logp_nt
    return surprise_nt.detach() * (1 + logp_nt - logp_nt.detach())


def covariance(logp_nt: Tensor, advantages_nt: Tensor, mask_nt: Tensor) -> Tensor:
    """Return the covariance of log-probability and advantage over the unmasked tokens, a float32 scalar.

    To first order a policy-gradient step changes the entropy by its negative times the step size (Cui et al. 2025):
    positive means that the reward is lowering the entropy.

    Raises:
        ValueError: If shapes differ or nothing is unmasked.
    """
    if not (logp_nt.shape == advantages_nt.shape == mask_nt.shape):
        raise ValueError(
            f"entropy covariance needs one shape (n, t), got {tuple(logp_nt.shape)}, {tuple(advantages_nt.shape)} "
            f"and {tuple(mask_nt.shape)}"
        )
    mask = mask_nt != 0
    if not bool(mask.any()):
        raise ValueError("entropy covariance: the mask leaves no token")
    logp, advantage = logp_nt.detach()[mask].float(), advantages_nt.detach()[mask].float()
    return ((logp - logp.mean()) * (advantage - advantage.mean())).mean()
