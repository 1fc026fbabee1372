"""Sampling: penalties see the response only, and length bounds fit the answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Any

import torch

from levelhead.policy.rounding import tolerance
from levelhead.recipe.sampling import Sampling
from levelhead.records import Turn
from levelhead.rollout.logits import LogitsPipeline
from oracle import plain
from oracle.context import DRAWN, PreflightContext
from oracle.result import Check, Status, judged
from oracle.tokens import demonstrations, spelled

_PROBE = {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.5}

_CHANCE = 1e-6
"""Probability below which rollouts that are all alike are no accident."""


def check_sampling(context: PreflightContext) -> Iterator[Check]:
    """Recompute penalised draws by hand; compare bounds with lengths."""
    with context.exact():
        yield _penalties(context)
    yield _temperature(context)
    yield _minimum(context)
    yield _maximum(context)


@torch.no_grad()
def _penalties(context: PreflightContext) -> Check:
    """Penalties count completion tokens: the first draw is free of them whatever the prompt holds."""
    penalties = {name: getattr(context.controls, name) for name in _PROBE}
    own = penalties != {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
    controls = Sampling(max_new_tokens=8, **(penalties if own else _PROBE))
    turns = [t[0] for t in context.generator.sample(context.contexts, 1, controls, context.seed)]
    allowed = tolerance(context.policy).most
    first = max(abs(t.behaviour_logprobs[0] - t.logprobs[0]) for t in turns)
    later, example = 0.0, turns[0]
    for turn in turns:
        table = plain.logits(context.policy, turn.context_ids, turn.completion_ids)
        for at, token in enumerate(turn.completion_ids):
            told = float(plain.penalized(table[at], turn.completion_ids[:at], controls)[token])
            gap = abs(told - turn.behaviour_logprobs[at])
            if gap > later:
                later, example = gap, turn
    later = max(later, _said_twice(context, turns[0], controls))
    evidence = {
        "penalties": {name: getattr(controls, name) for name in _PROBE},
        "of_the_recipe": own,
        "first_token_moved_by": first,
        "largest_difference": later,
        "allowed": allowed,
        "first_tokens": spelled(context.codec, example.completion_ids[:4]),
    }
    wrong = None
    if first > allowed:
        wrong = (
            f"penalties move the first token of a completion by {first:.3g} nats, before it holds anything: they count "
            "the prompt, so tokens that no prompt holds (the stop token) win"
        )
    elif later > allowed:
        wrong = f"penalised draws are {later:.3g} nats away from penalties that count the completion"
    fix = "count completion tokens only; slice the prompt off before any penalty"
    return judged("sampling/penalties", wrong, "penalties count the completion and nothing else", evidence, fix)


def _said_twice(context: PreflightContext, turn: Turn, controls: Sampling) -> float:
    """Return how far penalties are from those computed by hand behind a completion that says every token twice.

    An untrained policy hardly ever repeats a token, and how often one occurs would not matter.
    """
    ids = turn.completion_ids[:4]
    history = [token for token in ids for _ in range(2)]
    row_v = plain.logits(context.policy, turn.context_ids, ids)[-1]
    pipeline = LogitsPipeline(controls, context.codec.stop_ids, len(row_v))
    found_v = pipeline(row_v[None], torch.tensor([history], device=row_v.device), len(history)).behaviour_bv[0]
    return float((found_v - plain.penalized(row_v, history, controls)).abs().max())


def _temperature(context: PreflightContext) -> Check:
    """The rollouts of a group differ, or are alike no more often than chance would have it."""
    grpo, name = context.grpo, "sampling/temperature"
    if grpo is None:
        return Check(name, "pass", "no rollouts are drawn")
    evidence: dict[str, Any] = {"train": grpo.sampling.temperature, "eval": context.recipe.eval.sampling.temperature}
    if grpo.sampling.temperature == 0:
        greedy = "grpo.sampling.temperature is 0: all rollouts of a group are equal, and no group has contrast"
        return Check(name, "fail", greedy, evidence, "set grpo.sampling.temperature to 1.0")
    firsts = [[r.turns[0] for r in group.rollouts] for group in context.drawn.groups if len(group.rollouts) > 1]
    alike = [turns for turns in firsts if len({turn.completion_ids for turn in turns}) == 1]
    # K draws that are all equal to a completion of probability p have the probability p^(K-1).
    chance = math.exp(math.fsum((len(turns) - 1) * sum(turns[0].logprobs) for turns in alike))
    evidence |= {"groups": len(firsts), "groups_of_equal_rollouts": len(alike), "chance_of_that": chance}
    wrong = None
    if firsts and len(alike) == len(firsts) and chance < _CHANCE:
        wrong = (
            f"in all {len(firsts)} groups every rollout is the same, which the policy's own probabilities allow with "
            f"a chance of {chance:.1g}: no group has contrast"
        )
    right = f"rollouts at temperature {grpo.sampling.temperature:g}, evaluation at {evidence['eval']:g}"
    fix = "raise grpo.sampling.top_k, top_p or temperature; give each rollout of a prompt random numbers of its own"
    return judged(name, wrong, right, evidence, fix)


def _lengths(context: PreflightContext) -> list[int]:
    """Lengths of the supervised targets, or of the oracles' answers where there is no supervised stage."""
    prompts = [p for task_prompts in context.prompts.values() for p in task_prompts]
    if context.recipe.sft is not None:
        return [len(pair.completion_ids) for pair in demonstrations(context, prompts)]
    answers = [(p, context.setup.tasks[p.task].oracle(p)) for p in prompts]
    return [len(context.codec.demonstration(p.messages, a[0]).completion_ids) for p, a in answers if a and len(a) == 1]


def _minimum(context: PreflightContext) -> Check:
    name = "sampling/min-length"
    sampling = context.grpo.sampling if context.grpo is not None else context.recipe.eval.sampling
    least, lengths = sampling.min_new_tokens, _lengths(context)
    if least == 0 or not lengths:
        return Check(name, "pass", "no minimum length" if least == 0 else f"minimum {least}; no answer to compare with")
    short = sum(length < least for length in lengths) / len(lengths)
    evidence = {"min_new_tokens": least, "answers": len(lengths), "shorter": short, "shortest": min(lengths)}
    wrong = None
    if short:
        wrong = (
            f"{short:.0%} of the perfect answers are shorter than min_new_tokens {least} (the shortest has "
            f"{min(lengths)} tokens): the policy is not allowed to end them"
        )
    severity: Status = "fail" if short > 0.5 else "warn"
    fix = f"set min_new_tokens to at most {min(lengths)}"
    right = f"perfect answers have {min(lengths)} tokens or more, the minimum is {least}"
    return judged(name, wrong, right, evidence, fix, severity=severity)


def _maximum(context: PreflightContext) -> Check:
    name = "sampling/max-length"
    budgets = {"eval.sampling": context.recipe.eval.sampling.max_new_tokens}
    if context.grpo is not None:
        budgets["grpo.sampling"] = context.grpo.sampling.max_new_tokens
    where, most = min(budgets.items(), key=lambda item: item[1])
    lengths = _lengths(context)
    cut = sum(length > most for length in lengths) / max(len(lengths), 1)
    clipped = _clipped(context.turns)
    evidence = {
        "max_new_tokens": budgets,
        "perfect_answers": {"n": len(lengths), "median": median(lengths), "max": max(lengths)} if lengths else {},
        "perfect_answers_cut": cut,
        "drawn_now": {
            "n": len(context.turns),
            "cut": clipped,
            "mean_length": fmean(len(t.completion_ids) for t in context.turns),
        },
        "drawn_with_at_most": min(most, DRAWN),
    }
    if cut:
        wrong = f"{cut:.0%} of the perfect answers, up to {max(lengths)} tokens, exceed {where}.max_new_tokens {most}"
        return Check(name, "fail" if cut > 0.5 else "warn", wrong, evidence, f"set it to at least {max(lengths)}")
    if context.recipe.sft is None and clipped > 0.5 and context.controls.max_new_tokens < DRAWN:
        wrong = f"{clipped:.0%} of the completions drawn now run out of {context.controls.max_new_tokens} tokens"
        return Check(
            name, "warn", wrong, evidence, "raise grpo.sampling.max_new_tokens, or teach the format with sft first"
        )
    fits = (
        f"perfect answers have up to {max(lengths)} of {most} tokens" if lengths else f"{clipped:.0%} are cut at {most}"
    )
    return Check(name, "pass", fits, evidence)


def _clipped(turns: Sequence[Turn]) -> float:
    return sum(turn.finish == "length" for turn in turns) / max(len(turns), 1)
