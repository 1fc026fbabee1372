"""Memory: will training fit, by a sum of its parts and by a real micro-batch."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from levelhead.policy.packing import TokenSequence
from levelhead.preflight.context import PreflightContext
from levelhead.preflight.result import Check, judged
from levelhead.preflight.trial import clean
from levelhead.training.prepare import make_objective

_GIB = 1 << 30
DIVIDED = ("weights", "gradients", "optimizer", "reference")
"""Parts that processes divide with ``distributed.shard: full``."""
_ON_CPU = 2048
"""Tokens of the micro-batch that is really computed where memory is not the device's own."""


def check_memory(context: PreflightContext) -> Iterator[Check]:
    """Add up the parts, then run the largest micro-batch of the recipe."""
    parts = estimate(context)
    total, room = sum(parts.values()), capacity(context.policy.device)
    evidence: dict[str, Any] = {
        "gib": {k: round(v / _GIB, 3) for k, v in parts.items()},
        "total_gib": round(total / _GIB, 3),
    }
    if room is not None:
        evidence["room_gib"] = round(room / _GIB, 2)
    wrong, severity = None, "warn"
    if room is not None and total > 0.9 * room:
        wrong = f"training is estimated to need {total / _GIB:.1f} GiB of {room / _GIB:.1f} GiB"
        severity = "fail" if total > 1.5 * room else "warn"
    fix = "use model.lora, gradient_checkpointing, or a smaller tokens_per_microbatch"
    right = f"about {total / _GIB:.2f} GiB" + (f" of {room / _GIB:.1f} GiB" if room is not None else "")
    yield judged("memory/estimate", wrong, right, evidence, fix, severity="fail" if severity == "fail" else "warn")
    yield _micro_batch(context)


def estimate(context: PreflightContext) -> dict[str, int]:
    """Return the bytes of training by part: weights, gradients, AdamW's moments, reference, activations, caches.

    Activations are those of a decoder block without recomputation, about 34 values a token and hidden unit at 2 bytes
    (Korthikanti et al. 2022, table 2, attention scores aside), or one a layer with gradient checkpointing.  Where
    processes divide the weights it is what one of them needs.
    """
    policy, recipe = context.policy, context.recipe
    trained = policy.parameters
    weights = sum(p.numel() * p.element_size() for p in policy.model.parameters())
    gradients = sum(p.numel() * p.element_size() for p in trained)
    config = policy.base.config
    hidden, layers = int(config.hidden_size), int(config.num_hidden_layers)
    stages = [stage for stage in (recipe.sft, recipe.grpo) if stage is not None]
    tokens = max((stage.tokens_per_microbatch for stage in stages), default=0)
    width = 4 if policy.compute_dtype == torch.float32 else 2
    a_token = hidden * width * (1 if recipe.model.gradient_checkpointing else 17)
    parts = {
        "weights": weights,
        "gradients": gradients,
        "optimizer": 2 * gradients,
        "activations": tokens * layers * a_token,
        "reference": 0,
        "cache": 0,
    }
    if context.grpo is not None and not policy.lora:
        parts["reference"] = make_objective(recipe, context.grpo)[0].coefficients.needs_reference * weights
    if recipe.distributed.shard == "full" and context.processes > 1:
        parts |= {name: -(-parts[name] // context.processes) for name in DIVIDED}
        parts["whole weights"] = weights if recipe.generator.kind == "local" else 0
    if context.grpo is not None:
        heads = int(getattr(config, "num_attention_heads", 1))
        kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        longest = max(len(t.context_ids) for t in context.turns) + context.grpo.sampling.max_new_tokens
        rows = min(context.grpo.batch_size, 256)
        parts["cache"] = rows * longest * layers * 2 * kv_heads * (hidden // heads) * width
    return parts


def capacity(device: torch.device) -> int | None:
    """Return the bytes a device can give, what is used already included; ``None`` where nobody says."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    limits = []
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = Path(path).read_text(encoding="utf-8").strip() if Path(path).is_file() else "max"
        limits += [int(text)] if text.isdigit() else []
    try:
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError):
        return min(limits, default=None)
    return min(limits)


def _micro_batch(context: PreflightContext) -> Check:
    """Forward and backward of the fullest micro-batch (on CPU, of its first part)."""
    policy, recipe = context.policy, context.recipe
    stages = [stage for stage in (recipe.sft, recipe.grpo) if stage is not None]
    if not stages:
        return Check("memory/micro-batch", "pass", "nothing is trained")
    budget = max(stage.tokens_per_microbatch for stage in stages)
    asked = budget if policy.device.type == "cuda" else min(budget, _ON_CPU)
    longest = max((t for t in context.turns), key=lambda t: len(t.context_ids))
    completion = (longest.completion_ids * asked)[: max(1, min(context.controls.max_new_tokens, asked // 2))]
    length = len(longest.context_ids) + len(completion)
    sequences = [TokenSequence(longest.context_ids, completion, i) for i in range(max(1, asked // length))]
    cuda = policy.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(policy.device)
    evidence: dict[str, Any] = {"tokens": length * len(sequences), "tokens_per_microbatch": budget}
    wrong = None
    try:
        with policy.training():
            (micro, *_) = policy.pack(sequences, asked)
            stats = policy.score(micro)
            (stats.logp.mean() + 0.0 * stats.entropy.mean()).backward()
    except (torch.OutOfMemoryError, MemoryError) as error:
        wrong = f"a micro-batch of {asked} tokens does not fit: {str(error).splitlines()[0][:120]}"
    finally:
        clean(policy)
        gc.collect()
    if cuda:
        evidence["peak_gib"] = round(torch.cuda.max_memory_allocated(policy.device) / _GIB, 2)
        torch.cuda.empty_cache()
    right = f"forward and backward of {evidence['tokens']} tokens fit"
    fix = "lower tokens_per_microbatch, or set model.gradient_checkpointing: true"
    return judged("memory/micro-batch", wrong, right, evidence, fix)
