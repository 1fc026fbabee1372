"""Demonstrations as the supervised stage trains on them, and token ids as quoted texts."""

from __future__ import annotations

from collections.abc import Sequence

from levelhead.policy.packing import TokenSequence
from levelhead.records import Prompt
from levelhead.text.codec import Codec
from levelhead.text.evidence import read
from levelhead.training.optim import Updater
from levelhead.training.sft import SftTrainer
from levelhead.training.stream import PromptStream
from oracle.context import PreflightContext


def demonstrations(context: PreflightContext, prompts: Sequence[Prompt]) -> list[TokenSequence]:
    """Return the demonstrations that the supervised stage would train on; none where a task has no oracle."""
    sft = context.recipe.sft
    with_oracle = [p for p in prompts if _shown(context, p)]
    if sft is None or not with_oracle:
        return []
    tasks = context.setup.tasks
    stream = PromptStream(list(tasks.values()), [1.0] * len(tasks), 0)
    updater = Updater(context.policy.parameters, sft.optimizer, sft.steps, context.policy.matrices)
    return SftTrainer(context.policy, tasks, stream, updater, sft, 0, context.loop).demonstrations(with_oracle)


def spelled(codec: Codec, ids: Sequence[int]) -> str:
    """Return token ids as a line of quoted texts."""
    return " ".join(repr(token.text) for token in read(codec, ids))


def _shown(context: PreflightContext, prompt: Prompt) -> bool:
    task = context.setup.tasks[prompt.task]
    return task.demonstrates or bool(task.oracle(prompt))
