"""Episodes of several turns from demonstrations, for trials of a policy that would never write a second turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from levelhead.errors import InputError
from levelhead.records import ChatMessage, Group, Rollout, Score, Turn
from levelhead.tasks.base import SingleTurnTask
from levelhead.training.demonstrations import Demonstrations
from oracle import plain
from oracle.context import PreflightContext

TOKENS = 48
"""Tokens of a turn's answer that are shown, the last of them its stop token."""


def shown_groups(context: PreflightContext, k: int) -> list[Group]:
    """Return a group for each task of several turns whose sampled rollouts have one turn only; none where none is.

    A group holds a perfect episode, and the same without its last turn, in turn, so that the two differ in length.
    What a sampler would have recorded is computed the plain way.

    Args:
        context: Of the preflight.
        k: Rollouts of a group.
    """
    groups = []
    long = {g.prompt.task for g in context.drawn.groups for r in g.rollouts if len(r.turns) > 1}
    for name, task in context.setup.tasks.items():
        if k < 2 or name in long or isinstance(task, SingleTurnTask) or not task.demonstrates:
            continue
        prompts = context.prompts[name][:1]
        try:
            shown = Demonstrations(context.setup.tasks, context.loop).show(prompts)
        except InputError:
            continue
        for prompt, episode in zip(prompts, shown, strict=True):
            turns = [_turn(context, messages, answer) for messages, answer in episode[:3]]
            if len(turns) > 1:
                whole = Rollout(prompt.id, tuple(turns), Score(0.0), 0, ("",) * len(turns))
                shorter = replace(whole, turns=whole.turns[:-1], text=whole.text[:-1])
                groups.append(Group(prompt, tuple(shorter if i % 2 else whole for i in range(k))))
    return groups


@torch.no_grad()
def _turn(context: PreflightContext, messages: Sequence[ChatMessage], answer: str) -> Turn:
    """An answer as if the policy had sampled it; of a long one the beginning and the end."""
    pair = context.codec.demonstration(messages, answer)
    ids = (
        pair.completion_ids
        if len(pair.completion_ids) <= TOKENS
        else (*pair.completion_ids[: TOKENS - 1], context.codec.stop_id)
    )
    heat = context.controls.temperature or 1.0
    logp = tuple(plain.logprobs(context.policy, pair.context_ids, ids, heat).tolist())
    return Turn(pair.context_ids, ids, logp, logp, "stop")
