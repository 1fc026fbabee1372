"""Log-probability and entropy of given tokens from hidden states, without the logits ever existing in full."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BLOCK_ELEMENTS = 1 << 24
"""Logits held at once: 64 MiB in float32."""


def token_statistics(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    scale: float = 1.0,
    block_elements: int = BLOCK_ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of its distribution, p = softmax(z / temperature).

    ``z = cap(scale * (hidden @ weight.T + bias))`` is computed in blocks of tokens, forward and again in the
    backward pass, so that memory grows with a block and not with tokens times vocabulary.  Sums run in float32 or
    better.
    Both outputs are differentiable: with p the distribution and H its entropy,
    ``d logp_y / dz = (1_y - p) / T`` and ``dH / dz = -p (log p + H) / T``.

    Args:
        hidden: (m, d) hidden states that predict the targets.
        weight: (v, d) output embedding.
        targets: (m,) token ids.
        bias: (v,) output bias.
        temperature: Positive; the logits are divided by it.
        softcap: ``softcap * tanh(z / softcap)`` is applied to the logits (Gemma 2).
        scale: Factor on the logits (Cohere, Granite).
        block_elements: Logits computed at once.

    Returns:
        (m,) log-probabilities and (m,) entropies in nats, float32 or better.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive to score tokens, got {temperature}")
    result: tuple[Tensor, Tensor] = _TokenStatistics.apply(
        hidden, weight, bias, targets, temperature, softcap, scale, max(1, block_elements // weight.shape[0])
    )  # type: ignore[no-untyped-call]
    return result


def _logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, softcap: float | None, scale: float
) -> tuple[Tensor, Tensor | None]:
    """Tempered logits of a block in float32 or better, and the derivative of the soft cap where there is one."""
    logits = hidden @ weight.T
    logits = logits.to(_precise(logits))
    if bias is not None:
        logits = logits + bias.to(logits.dtype)
    if scale != 1.0:
        logits = logits * scale
    slope = None
    if softcap is not None:
        capped = torch.tanh(logits / softcap)
        slope = 1 - capped * capped
        logits = capped * softcap
    return logits / temperature if temperature != 1.0 else logits, slope


def _precise(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


class _TokenStatistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        softcap: float | None,
        scale: float,
        block: int,
    ) -> tuple[Tensor, Tensor]:
        logp = torch.empty(len(targets), dtype=_precise(hidden), device=hidden.device)
        entropy = torch.empty_like(logp)
        projection = weight.to(hidden.dtype)
        for start in range(0, len(targets), block):
            rows = slice(start, start + block)
            logits, _ = _logits(hidden[rows], projection, bias, temperature, softcap, scale)
            logprobs = logits.log_softmax(-1)
            logp[rows] = logprobs.gather(-1, targets[rows, None]).squeeze(-1)
            entropy[rows] = -(logprobs.exp() * logprobs).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, targets, entropy)
        ctx.settings = (temperature, softcap, scale, block)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_logp, grad_entropy = grads
        hidden, weight, bias, targets, entropy = ctx.saved_tensors
        temperature, softcap, scale, block = ctx.settings
        projection = weight.to(hidden.dtype)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=_precise(weight)) if needs_weight else None
        grad_bias = torch.zeros_like(bias, dtype=_precise(bias)) if needs_bias and bias is not None else None
        for start in range(0, len(targets), block):
            rows = slice(start, start + block)
            logits, slope = _logits(hidden[rows], projection, bias, temperature, softcap, scale)
            logprobs = logits.log_softmax(-1)
            probs = logprobs.exp()
            grad = -probs * (grad_logp[rows, None] + grad_entropy[rows, None] * (logprobs + entropy[rows, None]))
            grad.scatter_add_(-1, targets[rows, None], grad_logp[rows, None])
            grad *= scale / temperature
            if slope is not None:
                grad *= slope
            cast = grad.to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = cast @ projection
            if grad_weight is not None:
                grad_weight += (cast.T @ hidden[rows]).to(grad_weight.dtype)
            if grad_bias is not None:
                grad_bias += grad.sum(0)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None,
            None,
            None,
            None,
        )
