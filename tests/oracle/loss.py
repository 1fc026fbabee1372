"""The loss: it comes from the completion's tokens, from each of them, and from nothing else.

Measured on the run's own trainers: the gradient that reaches a hidden state of the last layer is not zero exactly
where that state predicts a token whose label matters.  This is what changing labels one by one would show.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from levelhead import metrics as metric
from levelhead.errors import InputError
from levelhead.policy.packing import MicroBatch, TokenSequence
from levelhead.preflight.listening import Listener
from levelhead.preflight.trial import WHOLE, clean, uneven
from levelhead.recipe.objective import Advantage, Kl
from oracle import plain
from oracle.context import PreflightContext
from oracle.result import Check, judged
from oracle.shown import shown_groups
from oracle.tokens import demonstrations, spelled
from oracle.trial import contrasted, grpo_trial, sft_trial


class _Pair(NamedTuple):
    """A sequence of a batch, and what each of its tokens weighs in the loss."""

    context_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    prefix_group: int
    advantage: float = 1.0


_FIX = "predict completion token t from the state before it; take the mask from lengths, never from token values"


def check_loss(context: PreflightContext) -> Iterator[Check]:
    """Look where the loss of each stage comes from."""
    yield _labels(context)
    if context.grpo is not None:
        yield _grpo(context)
    if context.recipe.sft is not None:
        yield from _sft(context)
    yield _stop_once(context)


def _grpo(context: PreflightContext) -> Check:
    grpo = context.grpo
    assert grpo is not None
    bare = {
        "kl": Kl(),
        "entropy": grpo.entropy.model_copy(update={"coef": 0.0}),
        "advantage": Advantage(),
        "mask_truncated": False,
        "tokens_per_microbatch": WHOLE,
        "loss": grpo.loss.model_copy(update={"top_entropy": None, "importance": None}),
    }
    few = [replace(group, rollouts=group.rollouts[:4]) for group in context.drawn.groups if len(group.rollouts) > 1]
    groups = contrasted(uneven(few[:: max(1, len(few) - 1)], context.codec.stop_id, WHOLE))
    if not groups:
        return Check("loss/completion-only", "warn", "no group of two rollouts was drawn, so no loss was computed")
    groups += contrasted(shown_groups(context, len(groups[0].rollouts)))
    trial = grpo_trial(context, grpo.model_copy(update=bare), groups)
    expected = [
        _Pair(turn.context_ids, turn.completion_ids, i, advantage)
        for i, (group, advantages) in enumerate(zip(groups, trial.result.advantages, strict=True))
        for rollout, advantage in zip(group.rollouts, advantages, strict=True)
        for turn in rollout.turns
    ]
    spared = 0.2 if grpo.loss.make().selects_tokens else 0.0
    check = _lost(trial.result.record.values) or _places(
        context, "loss/completion-only", expected, trial.listener, spared=spared
    )
    clean(context.policy)
    return check


def _lost(values: Mapping[str, float]) -> Check | None:
    """The loss of a step is no number, be it by a term without weight: none of the run's later losses is one either."""
    loss = values[metric.LOSS]
    if math.isfinite(loss):
        return None
    lost = {key: values[key] for key in (metric.ENTROPY, metric.KL) if not math.isfinite(values.get(key, 0.0))}
    wrong = " and ".join([f"the loss of one step is {loss}", *(f"its {key} {value}" for key, value in lost.items())])
    fix = "look for 0 times infinity (0 log 0) in what each term computes; a coefficient of 0 does not take it away"
    return Check("loss/completion-only", "fail", wrong, {key: str(value) for key, value in lost.items()}, fix)


def _sft(context: PreflightContext) -> Iterator[Check]:
    sft = context.recipe.sft
    assert sft is not None
    try:
        trainer, listener = sft_trial(context, sft)
    except InputError as error:
        yield Check(
            "loss/demonstrations", "fail", str(error), {}, "give every task an oracle, or remove the sft section"
        )
        return
    trainer.stream.load_state_dict({name: {"taken": 0, "epoch": 0, "offset": 0} for name in context.setup.tasks})
    size = min(sft.batch_size, 8)
    pairs = trainer.demonstrations(trainer.stream.take(size))
    expected = [_Pair(pair.context_ids, pair.completion_ids, pair.prefix_group) for pair in pairs]
    yield _places(context, "loss/demonstrations", expected, listener)
    clean(context.policy)


def _places(
    context: PreflightContext,
    name: str,
    pairs: Sequence[_Pair],
    listener: Listener,
    *,
    spared: float = 0.0,
) -> Check:
    """Compare the places that feed the loss with the states that predict completion tokens.

    Rows may hold several sequences as a tree, so places are counted by the token that stands at them.  A token that
    the policy is certain of has no gradient, nor has one on which the rollouts that share it cancel, and a few losses
    leave out a share of the tokens (``spared``).
    """
    states_of = _states(pairs, shared=context.policy.packs_trees)
    wanted = Counter(token for token, silent in states_of if not silent)
    either = Counter(token for token, silent in states_of if silent)
    loss_tokens: Counter[int] = Counter()
    for ids, marks in listener.rows():
        loss_tokens.update(token for token, mark in zip(ids, marks, strict=True) if mark)
    states, fed = len(states_of), loss_tokens.total()
    surplus, missing = loss_tokens - wanted - either, wanted - loss_tokens
    tokens, left_out = sum(len(pair.completion_ids) for pair in pairs), _left_out(pairs, listener)
    evidence = {
        "completion_tokens": tokens,
        "completion_tokens_left_out": left_out.total(),
        "states_that_predict_them": states,
        "states_in_the_loss": fed,
        "outside": surplus.total(),
        "missing": missing.total(),
    }
    wrong = None
    if surplus:
        wrong = (
            f"the loss comes from {surplus.total()} states that predict no completion token (at "
            f"{spelled(context.codec, list(surplus)[:4])}): it falls on prompt or padding, and misses "
            f"{missing.total()} of {states} states"
        )
    elif missing and missing.total() > spared * states + _certain(context, pairs):
        wrong = (
            f"{missing.total()} of {states} states that predict completion tokens feed no loss (at "
            f"{spelled(context.codec, list(missing)[:4])}): the tokens after them are not trained"
        )
    elif left_out.total() > spared * tokens:
        at = ", ".join(f"{count} at {place}" for place, count in left_out.most_common(4))
        wrong = f"{left_out.total()} of {tokens} completion tokens feed no loss ({at} of them): a mask hides these"
    right = f"the loss comes from the {tokens} completion tokens, and from nothing else"
    return judged(name, wrong, right, evidence, _FIX)


def _left_out(pairs: Sequence[_Pair], listener: Listener) -> Counter[str]:
    """Count the completion tokens that no gradient reaches, by where they stand in their completions."""
    places: Counter[str] = Counter()
    pending = Counter(pair.completion_ids for pair in pairs)
    for ids, marks in listener.completions():
        pending -= Counter([tuple(ids)])
        for at, mark in enumerate(marks):
            if not mark:
                places["the end" if at == len(ids) - 1 else "the start" if at == 0 else "the middle"] += 1
    places.update({"the whole": sum(map(len, pending.elements()))})
    return +places


def _states(pairs: Sequence[_Pair], *, shared: bool) -> list[tuple[int, bool]]:
    """Return the token at each distinct state that predicts a completion token; a prefix group may share states.

    With each, whether its gradient may vanish: where rollouts of opposite advantages go on with the same token.
    """
    states: dict[tuple[int, ...], dict[int, list[float]]] = {}
    for index, (context, completion, prefix_group, advantage) in enumerate(pairs):
        whole = context + completion
        for end in range(len(context), len(whole)):
            state = (prefix_group if shared else index, *whole[:end])
            states.setdefault(state, {}).setdefault(whole[end], []).append(advantage)
    return [(state[-1], all(map(_cancel, drawn.values()))) for state, drawn in states.items()]


def _cancel(advantages: Sequence[float]) -> bool:
    return abs(sum(advantages)) <= 1e-6 * sum(map(abs, advantages))


@torch.no_grad()
def _certain(context: PreflightContext, pairs: Sequence[_Pair]) -> int:
    """Count the tokens that the policy is so certain of that their gradient vanishes."""
    told = [plain.logprobs(context.policy, pair.context_ids, pair.completion_ids) for pair in pairs]
    return int(sum((logp > -1e-5).sum() for logp in told))


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
    wrong = None
    if labels != tokens:
        wrong = f"{tokens} completion tokens have {labels} labels: the mask does not count completions"
    elif dead:
        wrong = f"changing {dead} of {labels} completion labels changes nothing"
    return judged("loss/labels", wrong, f"each of {tokens} completion tokens has one label that counts", evidence, _FIX)


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
