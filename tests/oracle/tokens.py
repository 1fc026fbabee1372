"""Tokens are made once; demonstrations as the supervised stage trains on them, and token ids as quoted texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from levelhead.policy.packing import TokenSequence
from levelhead.records import Prompt
from levelhead.tasks.base import SingleTurnTask
from levelhead.text.codec import Codec
from levelhead.text.evidence import read
from levelhead.training.optim import Updater
from levelhead.training.sft import SftTrainer
from levelhead.training.stream import PromptStream
from oracle.context import PreflightContext
from oracle.result import Check, judged


def check_tokens(context: PreflightContext) -> Iterator[Check]:
    """Compare what the sampler returned with what comes out of the collector, id for id."""
    pairs = {(turn.context_ids, turn.completion_ids) for _, turns in context.drawn.turns for turn in turns}
    changed = [turn for turn in context.turns if (turn.context_ids, turn.completion_ids) not in pairs]
    others = [
        group.prompt.id
        for group in context.drawn.groups
        if isinstance(context.setup.tasks[group.prompt.task], SingleTurnTask)
        for rollout in group.rollouts
        if rollout.prompt_id != group.prompt.id
        or tuple(rollout.turns[0].context_ids) != tuple(context.codec.render(group.prompt.messages, group.prompt.chat))
    ]
    wrong = None
    if changed:
        end = spelled(context.codec, changed[0].completion_ids[-5:])
        wrong = f"{len(changed)} of {len(context.turns)} completions are not the tokens that were sampled: ... {end}"
    elif others:
        wrong = f"a rollout in the group of prompt {others[0]!r} has read another prompt"
    fix = "pass the sampled ids on; never decode and tokenize again, append or cut on the way"
    yield judged("tokens/made-once", wrong, "completions are exactly the tokens that were sampled", {}, fix)


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
