"""Mutations of what the checks of memory and of the recipe's numbers guard."""

from __future__ import annotations

import levelhead.preflight.checks.advice
import levelhead.preflight.memory_plan
from preflight.mutations.base import Mutation, patch

LORA = "model.lora.r=4"


def _large(check: str, what: str, *settings: str) -> Mutation:
    """Settings of a model that is large enough for published ones to apply."""
    return Mutation(
        check, what, patch(levelhead.preflight.checks.advice, "LARGE", lambda _: 0), settings, status="warn"
    )


def _told(check: str, what: str, *settings: str) -> Mutation:
    return Mutation(check, what, settings=settings, status="warn")


MUTATIONS = (
    Mutation(
        "memory/estimate",
        "the device has no memory to speak of",
        patch(levelhead.preflight.memory_plan, "capacity", lambda _: lambda _device: 1 << 20),
    ),
    Mutation(
        "memory/estimate",
        "the device has just as much memory as the runtime takes",
        patch(levelhead.preflight.memory_plan, "capacity", lambda _: lambda _device: 400 << 20),
        status="warn",
    ),
    _large("advice/grpo-learning-rate", "a hundred times too high", "grpo.optimizer.learning_rate=1e-3"),
    _large("advice/grpo-learning-rate", "too low to learn", "grpo.optimizer.learning_rate=1e-9"),
    _large("advice/grpo-learning-rate", "too high for LoRA", "grpo.optimizer.learning_rate=1e-2", LORA),
    _large("advice/sft-learning-rate", "a hundred times too high", "sft.optimizer.learning_rate=1e-2"),
    _large("advice/sft-learning-rate", "twice what holds", "sft.optimizer.learning_rate=2e-4"),
    _large("advice/sft-learning-rate", "too high for LoRA", "sft.optimizer.learning_rate=1e-2", LORA),
    _told("advice/batch", "one prompt per update", "grpo.batch_size=4"),
    _told("advice/batch", "twenty epochs", "grpo.epochs=20"),
    _told("advice/batch", "four updates and five epochs", "grpo.updates_per_batch=4", "grpo.epochs=5"),
    _told("advice/batch", "two updates and nine epochs", "grpo.updates_per_batch=2", "grpo.epochs=9"),
    _told("advice/coefficients", "a KL of 50", "grpo.kl.coef=50"),
    _told("advice/coefficients", "an entropy bonus of 1", "grpo.entropy.coef=1"),
    _told("advice/coefficients", "one task's KL of 5", "tasks.0.kl=5"),
)
