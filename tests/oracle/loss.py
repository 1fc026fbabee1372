"""The loss: each completion token has one label, which matters, and stop tokens stand where completions stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from levelhead.policy.packing import MicroBatch, TokenSequence
from oracle.context import PreflightContext
from oracle.result import Check, judged
from oracle.tokens import demonstrations, spelled


def check_loss(context: PreflightContext) -> Iterator[Check]:
    """Change labels one by one, and count stop tokens."""
    yield _labels(context)
    yield _stop_once(context)


_SHIFTS = (1, 2, 5)
"""Other labels tried for each: in half precision one of them may well be exactly as likely as the right one."""


def _relabelled(micro: MicroBatch, shift: int, vocab_size: int) -> MicroBatch:
    return replace(micro, targets=(micro.targets + shift) % vocab_size)


def _labels(context: PreflightContext) -> Check:
    """Changing a completion label changes the loss; there is one label a completion token, and none for the prompt."""
    turns = [turn for turn in context.turns if len(turn.completion_ids) > 1][:4] or context.turns[:4]
    shown = [pair for prompts in context.prompts.values() for pair in demonstrations(context, prompts[:1])]
    drawn = [TokenSequence(t.context_ids, t.completion_ids) for t in turns]
    sequences = [TokenSequence(s.context_ids, s.completion_ids, i) for i, s in enumerate([*drawn, *shown])]
    policy = context.policy
    labels = dead = 0
    with torch.no_grad():
        for micro in policy.pack(sequences, 1 << 14):
            labels += len(micro.targets)
            before = policy.score(micro).logp
            same = torch.ones_like(before, dtype=torch.bool)
            for shift in _SHIFTS:
                same &= policy.score(_relabelled(micro, shift, context.codec.vocab_size)).logp == before
            dead += int(same.sum())
            mask = float(micro.mask().sum())
            dead += int(mask != len(micro.targets))
    tokens = sum(len(s.completion_ids) for s in sequences)
    evidence = {"completion_tokens": tokens, "labels": labels, "labels_without_effect": dead}
    fix = "predict completion token t from the state before it; take the mask from lengths, never from token values"
    wrong = None
    if labels != tokens:
        wrong = f"{tokens} completion tokens have {labels} labels: the mask does not count completions"
    elif dead:
        wrong = f"changing {dead} of {labels} completion labels changes nothing"
    return judged("loss/labels", wrong, f"each of {tokens} completion tokens has one label that counts", evidence, fix)


def _stop_once(context: PreflightContext) -> Check:
    """A completion holds its stop token exactly once, last; one that ran out of budget holds none."""
    codec = context.codec
    pairs = [p for prompts in context.prompts.values() for p in demonstrations(context, prompts[:2])]
    shown = [("demonstration", p.completion_ids) for p in pairs]
    cut = [
        t[0]
        for t in context.generator.sample(context.contexts, 1, context.greedy(temperature=1.0, max_new_tokens=4), 1)
    ]
    wrong = None
    drawn = [(t, context.controls.max_new_tokens) for t in context.turns] + [(t, 4) for t in cut]
    for turn, budget in drawn:
        stops = sum(token in codec.stop_ids for token in turn.completion_ids)
        ended = turn.completion_ids[-1] in codec.stop_ids if turn.completion_ids else False
        if len(turn.completion_ids) > budget or (turn.finish == "length" and stops):
            wrong = (
                f"a completion that ran out of its {budget} tokens holds {len(turn.completion_ids)}, ending in "
                f"{spelled(codec, turn.completion_ids[-2:])}: a stop token was put there that nobody drew"
            )
        elif turn.finish == "stop" and (stops != 1 or not ended):
            wrong = f"a completion that stopped holds {stops} stop tokens: {spelled(codec, turn.completion_ids[-3:])}"
    for what, ids in shown:
        stops = sum(token in codec.stop_ids for token in ids)
        if stops != 1 or ids[-1] not in codec.stop_ids:
            wrong = (
                f"a {what} holds {stops} stop tokens and ends with {spelled(codec, ids[-2:])}: it never learns to end"
            )
    finishes: dict[str, Any] = dict(Counter(turn.finish for turn in context.turns))
    evidence = {"demonstrations": len(shown), "completions": len(drawn), "finish": finishes}
    right = "stop tokens stand at the end of completions that stopped, once each"
    return judged("loss/stop-token", wrong, right, evidence, "train on the stop token that was drawn, and on no other")
