"""Importance weights of a step from the full logits of plain forward passes, one sequence at a time."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from levelhead.policy.policy import Policy
from levelhead.records import Group
from small_run import alone


def weights(ratios: list[float], mode: str, low: float, high: float) -> list[float]:
    """Weights of the tokens of one sequence, by the formulas of docs/objective.md."""
    product, mean = math.prod(ratios), math.prod(ratios) ** (1 / len(ratios))
    if mode == "token_truncate":
        return [min(max(r, low), high) for r in ratios]
    if mode == "token_mask":
        return [r if low <= r <= high else 0.0 for r in ratios]
    if mode == "sequence_truncate":
        return [min(max(product, low), high)] * len(ratios)
    if mode == "sequence_mask":
        return [product if low <= product <= high else 0.0] * len(ratios)
    assert mode == "geometric_mask"
    return [r if low <= mean <= high else 0.0 for r in ratios]


@torch.no_grad()
def mean_weight(policy: Policy, groups: list[Group], mode: str, low: float, high: float) -> float:
    """Mean weight over the tokens of groups with contrast, ``policy`` being what the step starts from."""
    values: list[float] = []
    for group in groups:
        if len(set(group.rewards)) > 1:
            for rollout in group.rollouts:
                (turn,) = rollout.turns
                now, _ = alone(policy, turn.context_ids, turn.completion_ids)
                gaps = zip(now.tolist(), turn.behaviour_logprobs, strict=True)
                values += weights([math.exp(a - b) for a, b in gaps], mode, low, high)
    return math.fsum(values) / len(values)


@contextmanager
def computed(mode: str, low: float, high: float) -> Iterator[list[tuple[float, float]]]:
    """Work out the mean weight of every step of the runs inside by hand; yields pairs of that and what is logged."""
    from levelhead.training.grpo import GrpoTrainer

    step, pairs = GrpoTrainer.step, list[tuple[float, float]]()

    def watched(self: Any, number: int) -> Any:
        start = self.policy.inference_copy()
        start.model = copy.deepcopy(start.model)
        result = step(self, number)
        logged = result.record.values["sampling/importance_sampling_ratio/mean"]
        pairs.append((mean_weight(start, list(result.groups), mode, low, high), logged))
        return result

    GrpoTrainer.step = watched  # type: ignore[method-assign]
    try:
        yield pairs
    finally:
        GrpoTrainer.step = step  # type: ignore[method-assign]
