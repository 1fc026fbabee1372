"""Do the backends compute the same: log-probabilities, entropies and gradients on prefix trees of several turns."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
from speedlib.workloads import Workload

from gpulib.shapes import LFM2_350M, LLAMA_3_8B, QWEN2_5_05B, small
from gpulib.steps import make_policy
from levelhead.policy.backends.choose import backends
from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy

MODELS = {"qwen2": QWEN2_5_05B, "llama": LLAMA_3_8B, "lfm2": LFM2_350M}

LOUD = {"initializer_range": 0.3}
"""Weights so large that what a token looks at matters to its logits."""

EXACT = 1e-3
"""Relative distance of values and gradients in float32, summed in another order."""

COARSE = 3.0
"""In bfloat16 a backend may lie this many times as far from float32 as the reference does in bfloat16."""


def sequences(vocab: int, seed: int = 0) -> list[TokenSequence]:
    """Groups of different sizes; in the last one, later turns continue earlier ones."""
    rng = random.Random(seed)

    def ids(n: int) -> tuple[int, ...]:
        return tuple(rng.randrange(2, vocab) for _ in range(n))

    trees = [TokenSequence(prompt, ids(rng.randint(1, 9)), g) for g in range(3) for prompt in [ids(5 + 7 * g)]
             for _ in range(g + 2)]  # fmt: skip
    for _ in range(2):
        context = ids(6)
        for _ in range(3):
            answer = ids(4)
            trees.append(TokenSequence(context, answer, 3))
            context += answer + ids(3)
    return trees


def outcome(policy: Policy, examples: list[TokenSequence]) -> dict[str, torch.Tensor]:
    """Values in the order of the examples, and the gradient of a sum of them, as one vector each."""
    policy.model.zero_grad(set_to_none=True)
    values: dict[int, torch.Tensor] = {}
    with policy.training():
        for micro in policy.pack(examples, 200):
            stats = policy.score(micro)
            ordered = [stats.logp.split(list(micro.lengths)), stats.entropy.split(list(micro.lengths))]
            for place, index in enumerate(micro.indices):
                values[index] = torch.cat([part[place].detach().float().cpu() for part in ordered])
            pieces = [(logp.sum() + 0.5 * h.sum()) * (1.0 + 0.1 * i)
                      for i, logp, h in zip(micro.indices, *ordered, strict=True)]  # fmt: skip
            torch.stack(pieces).sum().backward()
    gradient = torch.cat([p.grad.detach().double().flatten().cpu() for p in policy.parameters if p.grad is not None])
    policy.model.zero_grad(set_to_none=True)
    return {"values": torch.cat([values[i] for i in range(len(examples))]).double(), "gradient": gradient}


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative to what ``other`` varies by: values that all lie near their mean would agree whatever they are."""
    return float((one - other).norm() / (other - other.mean()).norm())


def compare(model: str, device: torch.device, layers: int, hidden: int) -> list[dict[str, Any]]:
    """A row a backend and precision: distances from the reference in float32, and whether rounding explains them."""
    work = Workload("agreement", hidden, layers, 256, 8, 4, 2, 2, config=small(MODELS[model], layers, hidden) | LOUD)
    plain = make_policy(work, device, torch.float32)
    examples, rows = sequences(work.vocab), []
    allowed: dict[str, dict[str, float]] = {}
    reference: dict[str, torch.Tensor] | None = None
    for kind in reversed(backends()):  # the reference is the last one
        for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
            policy = Policy(copy.deepcopy(plain.model), plain.codec, dtype)
            row: dict[str, Any] = {"model": model, "backend": kind.name, "dtype": name}
            reason = kind.supports(policy)
            if reason is not None:
                rows.append(row | {"skipped": reason})
                continue
            policy._backend = kind()
            computed = outcome(policy, examples)
            reference = reference or computed
            far = {part: distance(computed[part], reference[part]) for part in computed}
            allowed.setdefault(name, {p: EXACT if name == "float32" else COARSE * d + EXACT for p, d in far.items()})
            row |= {f"{part}_distance": d for part, d in far.items()}
            rows.append(row | {"agrees": all(d <= allowed[name][part] for part, d in far.items())})
    return rows
