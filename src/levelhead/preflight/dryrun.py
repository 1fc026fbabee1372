"""A run up to its first forward pass: data, tokenizer, the model's shape without its weights, one batch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from levelhead.recipe import Recipe
from levelhead.tasks.presence import require_files


def dry_run(recipe: Recipe) -> dict[str, Any]:
    """Do everything up to the first forward pass.

    Returns:
        By name: parameters, prompts, tokens of the first batch; ``checks`` holds the warnings and failures of those
        preflight checks that need no weights.
    """
    from levelhead.preflight import preflight
    from levelhead.training.prepare import describe, prepare
    from levelhead.training.stream import PromptStream

    require_files(recipe)
    start = time.perf_counter()
    setup = prepare(recipe, load="shape")
    facts = describe(setup)
    stream = PromptStream(list(setup.tasks.values()), [setup.weights[name] for name in setup.tasks], recipe.seed)
    n = recipe.grpo.batch_size // recipe.grpo.group_size if recipe.grpo else recipe.sft.batch_size if recipe.sft else 1
    lengths = [len(setup.policy.codec.render(prompt.messages, prompt.chat)) for prompt in stream.take(n)]
    checks = preflight(setup, needs=["data"]).checks
    return facts | {
        "checks": [f"{c.status} {c.name}: {c.message}" for c in checks if c.status != "pass"],
        "first_batch_prompts": n,
        "first_batch_prompt_tokens": {"min": min(lengths), "max": max(lengths), "sum": sum(lengths)},
        "seconds": round(time.perf_counter() - start, 1),
    }


def words(facts: Mapping[str, Any], language: str = "en") -> str:
    """Return what :func:`dry_run` found in sentences, in English or Chinese."""
    tokens = facts["first_batch_prompt_tokens"]
    names = {**facts, "tasks": ", ".join(facts["tasks"]), **tokens}
    lines = [text.format(**names) for text in _WORDS[language]]
    lines += [f"{name}: {counts}" for name, counts in facts.get("overlong", {}).items()]
    return "\n".join([*lines, *facts["checks"]])


_WORDS = {
    "en": (
        "{parameters:,} parameters, {trained_parameters:,} of them trained, computed in {compute_dtype}",
        "context of {context:,} tokens, vocabulary of {vocabulary:,}",
        "tasks: {tasks}",
        "first batch: {first_batch_prompts:,} prompts of {min:,} to {max:,} tokens, {sum:,} together",
        "no weights were loaded; {seconds} s",
    ),
    "zh": (
        "{parameters:,} 个参数，训练其中 {trained_parameters:,} 个，计算类型 {compute_dtype}",
        "上下文 {context:,} 个词元，词表 {vocabulary:,}",
        "任务：{tasks}",
        "第一批：{first_batch_prompts:,} 条提示词，每条 {min:,} 到 {max:,} 个词元，共 {sum:,} 个",
        "没有加载权重；用时 {seconds} 秒",
    ),
}
