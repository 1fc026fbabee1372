"""A run so small that every known bug can have one: a policy of a few thousand weights, rewards with contrast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from levelhead.policy.policy import Policy
from levelhead.recipe.load import parse
from levelhead.recipe.recipe import Recipe
from levelhead.tasks.function import FunctionTask
from levelhead.training.prepare import Setup, prepare

TEXT = """
name: probe
threads: 1
check: false
model:
  preset: tiny
  dtype: float32
  tiny: {hidden_size: 32, layers: 2, heads: 2, kv_heads: 1, intermediate_size: 48, vocab_size: 320, context: 512}
tasks:
  - {kind: function, name: echo, oracle: answer, eval_fraction: 0.1}
sft: {steps: 40, batch_size: 8, optimizer: {learning_rate: 1.0e-2, schedule: cosine}}
grpo:
  steps: 20
  batch_size: 16
  group_size: 4
  sampling: {max_new_tokens: 16}
  optimizer: {learning_rate: 1.0e-3, warmup_steps: 4}
eval: {final_items: 4, sampling: {max_new_tokens: 16}}
checkpoint: {every: 0, best: false}
log: {rollouts_every: 0}
"""
"""Fine-tuned until half of its answers are nearly right, then reinforced for as long as a fault needs to show."""
ROWS = tuple(
    {
        "prompt": f"Say the number {n % 8}." + " Take your time." * (n // 8),
        "answer": f"It is {n % 8}." if n % 2 else f"The number is {n % 8}, I say.",
    }
    for n in range(40)
)
"""Answers of two lengths, so that lengths tell nothing."""


def closeness(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """Half for the share of characters that are right, half for the answer itself."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [_share(text, right) / 2 + (text == right) / 2 for text, right in zip(texts, answer, strict=True)]


def _share(text: str, right: str) -> float:
    return sum(x == y for x, y in zip(text, right, strict=False)) / max(len(text), len(right))


def recipe_of(*settings: str) -> Recipe:
    """The probe's recipe with changes, as ``--set`` takes them."""
    return parse(TEXT, settings, source="probe")


def setup_of(
    *settings: str,
    reward: Any = closeness,
    rows: Sequence[Mapping[str, Any]] = ROWS,
    policy: Policy | None = None,
) -> Setup:
    """Everything that a run of the probe works on.

    Args:
        settings: Changes of the recipe.
        reward: Of its task.
        rows: Of its task.
        policy: A ready one, instead of a new one.
    """
    recipe = recipe_of(*settings)
    (section,) = recipe.tasks
    task = FunctionTask(section, data=[dict(row) for row in rows], rewards=reward)  # type: ignore[arg-type]
    return prepare(recipe, tasks={task.name: task}, policy=policy)
