"""A recipe that preflight tests can afford: a policy of a few thousand weights, two tasks, rewards with contrast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from levelhead.recipe import Recipe
from levelhead.recipe.load import parse
from levelhead.tasks.registry import function_tasks
from levelhead.training.prepare import Setup, prepare

TEXT = """
name: probe
model:
  preset: tiny
  dtype: float32
  tiny: {hidden_size: 32, layers: 2, heads: 2, kv_heads: 1, intermediate_size: 48, vocab_size: 320, context: 512}
tasks:
  - {kind: function, name: echo, oracle: answer}
  - {kind: math, items: 12}
sft: {steps: 2, batch_size: 4}
grpo:
  steps: 2
  batch_size: 16
  group_size: 4
  sampling: {max_new_tokens: 24}
  optimizer: {learning_rate: 1.0e-3}
eval: {sampling: {max_new_tokens: 64}}
"""
ROWS = tuple(
    {"prompt": f"Say the number {n}." + " Take your time." * (n % 5), "answer": f"It is {n}."} for n in range(16)
)


def closeness(prompts: Sequence[Any], completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """1 for the answer, less for each character that is missing, too much or wrong."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [
        1.0 - sum(x != y for x, y in zip(t.ljust(80), a.ljust(80), strict=False)) / 40 - abs(len(t) - len(a)) / 100
        for t, a in zip(texts, answer, strict=True)
    ]


def recipe_of(*settings: str) -> Recipe:
    return parse(TEXT, settings, source="probe")


def setup_of(*settings: str, reward: Any = closeness, rows: Sequence[Mapping[str, Any]] = ROWS) -> Setup:
    recipe = recipe_of(*settings)
    return prepare(recipe, tasks=function_tasks(recipe, list(rows), reward))


CAUGHT_BY = {
    "sft-joins-strings": "tokens/same-prompt",
    "prompt-in-the-targets": "tokens/same-prompt",
    "template-without-last-newline": "tokens/generation-prompt",
    "truncation-cuts-the-generation-prompt": "tokens/context",
    "incomplete-stop-set": "stops/complete",
    "targets-without-stop-token": "loss/stop-token",
    "response-cut-by-padding-count": "agreement/sampler",
    "positions-count-padding": "agreement/sampler",
    "attention-to-padding": "agreement/sampler",
    "logprobs-after-controls": "agreement/sampler",
    "retokenized-from-text": "agreement/trainer",
    "judge-reads-the-prompt": "rewards/attached/echo",
    "rewards-out-of-step": "rewards/attached/echo",
    "mask-for-right-padding": "loss/completion-only",
    "labels-off-by-one": "agreement/trainer",
    "pad-is-end-of-turn": "loss/demonstrations",
    "logprobs-of-the-raw-prompt": "agreement/trainer",
    "temperature-in-sampling-only": "agreement/trainer",
    "dropout-left-on": "agreement/dropout",
    "entropy-penalised": "signs/audit",
    "entropy-negated-twice": "signs/audit",
    "kl-rewarded": "signs/audit",
    "advantages-negated": "signs/audit",
    "advantages-rolled": "signs/audit",
    "entropy-summed-over-tokens": "signs/audit",
    "entropy-of-impossible-tokens": "loss/completion-only",
}
"""The check that is meant for each known bug; others may see it too."""
PROVED_BY = {
    "retokenized-from-text": "tokens/made-once",
    "appended-end-of-turn": "tokens/made-once",
    "reference-not-frozen": "agreement/reference",
    "draws-depend-on-the-batch": "batching/seeded",
    "stale-sampler-weights": "agreement/synced",
    "penalties-count-the-prompt": "sampling/penalties",
    "pad-is-end-of-turn": "loss/labels",
    "response-cut-by-padding-count": "batching/greedy",
    "positions-count-padding": "batching/greedy",
    "attention-to-padding": "batching/alone",
    "labels-off-by-one": "agreement/packing",
}
"""The proof of the test suite (``oracle``) that is meant for each known bug of Levelhead's own arithmetic."""
