"""Batching: a completion does not depend on what it was sampled with, and every greedy token is the likeliest one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from levelhead.policy.rounding import tolerance
from levelhead.records import Prompt, Turn
from levelhead.rollout.draws import uniforms
from oracle import plain
from oracle.context import PreflightContext
from oracle.result import Check, judged
from oracle.tokens import spelled

_FIX = "left-pad with an attention mask, give positions that count real tokens only, and slice completions by position"


def check_batching(context: PreflightContext) -> Iterator[Check]:
    """Draw greedily in one batch of prompts of very different lengths, and alone."""
    with context.exact():
        prompts = context.contexts
        together = [turns[0] for turns in context.generator.sample(prompts, 1, context.greedy(), context.seed)]
        alone = [context.generator.sample([p], 1, context.greedy(), context.seed)[0][0] for p in prompts]
        yield _argmax(context, prompts, together)
        yield _alone(context, prompts, together, alone)
        yield _seeded(context, prompts)


@torch.no_grad()
def _argmax(context: PreflightContext, prompts: Sequence[Prompt], turns: Sequence[Turn]) -> Check:
    """Every token of a greedy completion is the likeliest, by the plain computation."""
    allowed = tolerance(context.policy).most
    worst, wrong = 0.0, None
    for prompt, turn in zip(prompts, turns, strict=True):
        if not turn.completion_ids:
            wrong = f"the completion of prompt {prompt.id!r} is empty"
            break
        table = plain.logits(context.policy, prompt.token_ids, turn.completion_ids).log_softmax(-1)
        drawn = table.gather(-1, torch.tensor(turn.completion_ids, device=table.device)[:, None])[:, 0]
        gaps = (table.max(-1).values - drawn).tolist()
        worst = max(worst, *gaps)
        if max(gaps) > allowed and wrong is None:
            wrong = _explain(context, prompt, turn, next(i for i, gap in enumerate(gaps) if gap > allowed))
    evidence = _evidence(context, prompts, turns) | {"largest_gap": worst, "allowed": allowed}
    right = f"{len(prompts)} greedy completions in one batch are what the model says"
    return judged("batching/greedy", wrong, right, evidence, _FIX)


def _explain(context: PreflightContext, prompt: Prompt, turn: Turn, at: int) -> str:
    context_ids, completion = prompt.token_ids, turn.completion_ids
    copied = next((n for n in range(len(completion), 1, -1) if completion[:n] == context_ids[-n:]), 0)
    if copied and at < copied:
        return (
            f"the completion of prompt {prompt.id!r} begins with the last {copied} tokens of its prompt "
            f"({spelled(context.codec, completion[:copied][-4:])}): it was cut out of the row at the wrong place, "
            "as if padding stood on the other side"
        )
    return (
        f"token {at + 1} of the greedy completion of prompt {prompt.id!r}, "
        f"{spelled(context.codec, completion[at : at + 1])}, is not the likeliest one in its context: the sampler "
        "computes another distribution than the model (padding, positions, or other weights)"
    )


@torch.no_grad()
def _alone(
    context: PreflightContext, prompts: Sequence[Prompt], together: Sequence[Turn], alone: Sequence[Turn]
) -> Check:
    """A completion and its log-probabilities are those of the prompt alone."""
    allowed = tolerance(context.policy).most
    wrong, worst = None, 0.0
    for prompt, a, b in zip(prompts, together, alone, strict=True):
        same = next((i for i, (x, y) in enumerate(zip(a.completion_ids, b.completion_ids, strict=False)) if x != y), -1)
        shared = same if same >= 0 else min(len(a.completion_ids), len(b.completion_ids))
        gaps = [abs(x - y) for x, y in zip(a.logprobs[:shared], b.logprobs[:shared], strict=True)]
        worst = max([worst, *gaps])
        tie = same >= 0 and abs(a.logprobs[same] - b.logprobs[same]) <= allowed
        differs = (same >= 0 and not tie) or (same < 0 and len(a.completion_ids) != len(b.completion_ids))
        if (differs or max(gaps, default=0.0) > allowed) and wrong is None:
            what = "other tokens" if differs else f"other log-probabilities (up to {max(gaps):.3g} nats apart)"
            wrong = (
                f"prompt {prompt.id!r} ({len(prompt.token_ids)} tokens) gets {what} in a batch with prompts of up to "
                f"{max(len(p.token_ids) for p in prompts)} tokens than it gets alone"
            )
    evidence = _evidence(context, prompts, together) | {"largest_logp_difference": worst, "allowed": allowed}
    right = f"{len(prompts)} prompts get in one batch what they get alone"
    return judged("batching/alone", wrong, right, evidence, _FIX)


def _seeded(context: PreflightContext, prompts: Sequence[Prompt]) -> Check:
    """A seeded draw depends on the prompt, and not on its neighbours or on how often it is asked for."""
    controls = context.greedy(temperature=1.0)
    together = [turns[0] for turns in context.generator.sample(prompts, 1, controls, context.seed)]
    alone = [context.generator.sample([p], 1, controls, context.seed)[0][0] for p in prompts]
    pairs = [
        row for row in zip(prompts, together, alone, strict=True) if row[1].completion_ids != row[2].completion_ids
    ]
    tipped = sum(_tips(context, *row) for row in pairs)
    differ = len(pairs) - tipped
    evidence = {"prompts": len(prompts), "differ": differ, "tipped_by_rounding": tipped}
    wrong = None
    if differ > len(prompts) // 3:
        wrong = f"{differ} of {len(prompts)} seeded draws depend on what else is in the batch: no run can be repeated"
    fix = "draw each completion from a generator of its own, seeded by prompt and index"
    return judged("batching/seeded", wrong, "seeded draws are the same alone and in a batch", evidence, fix)


@torch.no_grad()
def _tips(context: PreflightContext, prompt: Prompt, one: Turn, other: Turn) -> bool:
    """Whether rounding explains that two draws by the same numbers part.

    The number of a token picks the piece of the cumulated probabilities in which it falls.  Rounding moves the borders
    of pieces, so that a number near one may tip: both tokens then lie no further from it than borders move.
    """
    tokens = zip(one.completion_ids, other.completion_ids, strict=False)
    at = next((i for i, (a, b) in enumerate(tokens) if a != b), None)
    if at is None:
        return False
    number = uniforms(context.seed, prompt.id, 0, at + 1)[at]
    odds = plain.logits(context.policy, prompt.token_ids, one.completion_ids[: at + 1])[-1].double().softmax(-1)
    ends = odds.cumsum(-1)
    drawn = torch.tensor([one.completion_ids[at], other.completion_ids[at]], device=odds.device)
    off = torch.maximum(ends[drawn] - odds[drawn] - number, number - ends[drawn])
    return float(off.max()) <= tolerance(context.policy).mean


def _evidence(context: PreflightContext, prompts: Sequence[Prompt], turns: Sequence[Turn]) -> dict[str, Any]:
    samples = [
        {
            "prompt_tokens": len(prompt.token_ids),
            "completion": context.codec.decode(turn.completion_ids)[:80],
            "first_tokens": spelled(context.codec, turn.completion_ids[:4]),
        }
        for prompt, turn in zip(prompts, turns, strict=True)
    ]
    return {"samples": samples}
