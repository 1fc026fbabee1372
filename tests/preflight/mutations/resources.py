"""Mutations of what the checks of memory and of the recipe's numbers guard."""

from __future__ import annotations

from typing import Any

import torch

import levelhead.preflight.advice
import levelhead.preflight.memory
from levelhead.policy.policy import Policy
from preflight.mutations.base import Mutation, patch

LORA = "model.lora.r=4"


def _no_room(real: Any) -> Any:
    def fail(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    return fail


def _large(check: str, what: str, *settings: str) -> Mutation:
    """Settings of a model that is large enough for published ones to apply."""
    change = patch(levelhead.preflight.advice, "LARGE", lambda _: 0)
    return Mutation(check, what, change, settings, status="warn")


def _told(check: str, what: str, *settings: str) -> Mutation:
    return Mutation(check, what, settings=settings, status="warn")


MUTATIONS = (
    Mutation(
        "memory/estimate",
        "the device has no memory to speak of",
        patch(levelhead.preflight.memory, "capacity", lambda _: lambda _device: 1 << 20),
    ),
    Mutation(
        "memory/estimate",
        "a micro-batch of a billion tokens",
        settings=("grpo.tokens_per_microbatch=1000000000",),
    ),
    Mutation(
        "memory/estimate",
        "a supervised micro-batch of a billion tokens",
        settings=("sft.tokens_per_microbatch=1000000000",),
    ),
    Mutation("memory/micro-batch", "the forward pass does not fit", patch(Policy, "score", _no_room)),
    Mutation("memory/micro-batch", "packing does not fit", patch(Policy, "pack", _no_room)),
    Mutation("memory/micro-batch", "the backward pass does not fit", patch(torch.Tensor, "backward", _no_room)),
    _large("advice/grpo-learning-rate", "a hundred times too high", "grpo.optimizer.learning_rate=1e-3"),
    _large("advice/grpo-learning-rate", "too low to learn", "grpo.optimizer.learning_rate=1e-9"),
    _large("advice/grpo-learning-rate", "too high for LoRA", "grpo.optimizer.learning_rate=1e-2", LORA),
    _large("advice/sft-learning-rate", "a hundred times too high", "sft.optimizer.learning_rate=1e-2"),
    _large("advice/sft-learning-rate", "twice what holds", "sft.optimizer.learning_rate=2e-4"),
    _large("advice/sft-learning-rate", "too high for LoRA", "sft.optimizer.learning_rate=1e-2", LORA),
    _told("advice/groups", "two rollouts a prompt", "grpo.group_size=2"),
    _told("advice/groups", "three rollouts a prompt", "grpo.group_size=3", "grpo.batch_size=12"),
    _told("advice/groups", "one prompt an update", "grpo.batch_size=4"),
    _told("advice/reuse", "twenty epochs", "grpo.epochs=20"),
    _told("advice/reuse", "four updates and five epochs", "grpo.updates_per_batch=4", "grpo.epochs=5"),
    _told("advice/reuse", "two updates and nine epochs", "grpo.updates_per_batch=2", "grpo.epochs=9"),
    _told("advice/coefficients", "a KL of 50", "grpo.kl.coef=50"),
    _told("advice/coefficients", "an entropy bonus of 1", "grpo.entropy.coef=1"),
    _told("advice/coefficients", "one task's KL of 5", "tasks.0.kl=5"),
)
