"""Device and type of a recipe's model; an Apple GPU by itself only where it computes what the CPU computes."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from levelhead.errors import InputError
from levelhead.policy.quiet import without_progress_bars
from levelhead.recipe.model import Model
from levelhead.terminal import say

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LOGP_ERROR = 1e-3
"""Largest difference of a log-probability to the CPU's, in nats, with which a device is used by itself."""
GRADIENT_ERROR = 1e-2
"""Largest relative difference of a gradient, for the same."""


def resolve_device(name: str) -> torch.device:
    """Return the device that ``model.device`` names.

    Raises:
        InputError: It is not there.
    """
    if name == "auto" and torch.cuda.is_available():
        return torch.device("cuda")
    if name == "auto":
        return torch.device("mps" if torch.backends.mps.is_available() and not difference("mps") else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"model.device: {name!r} is no device; use auto, cpu, mps, cuda or cuda:N") from None
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError(f"model.device: {name!r} asked for, but torch sees no Apple GPU; use auto or cpu")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"model.device: {name!r} asked for, but torch sees no CUDA device; use auto or cpu")
    return device


def resolve_dtype(name: str, device: torch.device, *, whole: bool = False) -> torch.dtype:
    """Return the compute type: ``auto`` is bfloat16 where the hardware multiplies in it, else float32.

    On an Apple GPU it is float32, in which that is compared with the CPU; on a CPU where whole weights are trained
    (``whole``): bfloat16 hides most of an update at the rates of reinforcement learning
    (:func:`~levelhead.policy.rounding.foresee_visible`).
    """
    if name != "auto":
        return _DTYPES[name]
    if (whole and device.type == "cpu") or device.type == "mps":
        return torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    native = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    return torch.bfloat16 if native else torch.float32


@cache
def difference(device: str) -> str:
    """Compare a device with the CPU on the model that ships: log-probabilities of packed sequences, and gradients.

    Returns:
        Why it is not to be used, which is said once as well; empty where it agrees.
    """
    try:
        reason = _disagreement(*(_probe(name) for name in ("cpu", device)))
    except Exception as error:  # what an incomplete device raises is its own
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
    if reason:
        say(f"levelhead: model.device: auto takes the CPU, for {device} does not agree with it: {reason}", error=True)
    return reason


def _probe(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the completions of two short groups, and the gradient of their sum by the embeddings."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from levelhead.policy.packing import TokenSequence
    from levelhead.policy.policy import Policy
    from levelhead.text.codec import Codec

    source: Any = Model(preset="base-tiny").source
    with without_progress_bars():
        model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    model = model.to(device)
    policy = Policy(model.eval(), Codec(AutoTokenizer.from_pretrained(source)))
    contexts = [tuple(range(start, start + 24)) for start in (20, 60)]
    rows = [TokenSequence(contexts[g], tuple(range(90 + k, 102 + 2 * k)), g) for g in (0, 1) for k in (0, 1, 2)]
    logp: dict[int, torch.Tensor] = {}
    for batch in policy.pack(rows, 256):
        logp |= zip(batch.indices, policy.score(batch).logp.split(batch.lengths), strict=True)
    whole = torch.cat([logp[index] for index in range(len(rows))])
    whole.sum().backward()
    return whole.detach().cpu(), model.get_input_embeddings().weight.grad.cpu()


def _disagreement(ours: tuple[torch.Tensor, torch.Tensor], theirs: tuple[torch.Tensor, torch.Tensor]) -> str:
    gap = float((ours[0] - theirs[0]).abs().max())
    if not gap <= LOGP_ERROR:
        return f"log-probabilities differ by {gap:.2g} nats"
    relative = float((ours[1] - theirs[1]).norm() / ours[1].norm())
    return "" if relative <= GRADIENT_ERROR else f"gradients differ by {relative:.2g}"
