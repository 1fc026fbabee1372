"""The policy computed the slow and obvious way, for others to be measured against.

One sequence at a time: no padding, no attention mask, no position ids, no cache, no packing, no blocks; where there are
many completions of one context (:func:`many_logits`), one row each, filled up behind the end.  Nothing here uses the
sampler's or the trainer's code.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import Sampling


def logits(policy: Policy, context_ids: Sequence[int], completion_ids: Sequence[int]) -> Tensor:
    """Return the float32 logits, (t, v), that predict each of the t completion tokens; differentiable."""
    ids = torch.tensor([[*context_ids, *completion_ids]], device=policy.device)
    output = policy.forward(policy.base, input_ids=ids, use_cache=False, logits_to_keep=len(completion_ids) + 1)
    result: Tensor = output.logits[0, :-1].float()
    return result


def logprobs(
    policy: Policy, context_ids: Sequence[int], completion_ids: Sequence[int], temperature: float = 1.0
) -> Tensor:
    """Return the log-probability, (t,), of each completion token at a temperature; differentiable."""
    table = (logits(policy, context_ids, completion_ids) / temperature).log_softmax(-1)
    return table.gather(-1, torch.tensor(completion_ids, device=table.device)[:, None])[:, 0]


def padded_logits(policy: Policy, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Tensor]:
    """Return :func:`logits` of several (context, completion) pairs, padded on the right, where no token looks.

    Few and short ones only: logits of every place of all of them exist at once.  Differentiable.
    """
    longest = max(len(context) + len(completion) for context, completion in pairs)
    rows = [[*context, *completion] for context, completion in pairs]
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=policy.device)
    table: Tensor = policy.forward(policy.base, input_ids=ids, use_cache=False).logits.float()
    return [table[i, len(a) - 1 : len(a) + len(b) - 1] for i, (a, b) in enumerate(pairs)]


def penalized(row_v: Tensor, completion_ids: Sequence[int], controls: Sampling) -> Tensor:
    """Return one position's log-probabilities, (v,), after penalties for the tokens written so far, and nothing else.

    Args:
        row_v: Logits of the position.
        completion_ids: Completion tokens before it.
        controls: Their penalties and temperature are used; truncation is not.
    """
    row_v = row_v.clone()
    for token, times in Counter(completion_ids).items():
        z = row_v[token]
        z = z / controls.repetition_penalty if z > 0 else z * controls.repetition_penalty
        row_v[token] = z - controls.presence_penalty - controls.frequency_penalty * times
    return (row_v / (controls.temperature or 1.0)).log_softmax(-1)


def many_logits(policy: Policy, context_ids: Sequence[int], completions: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return the float32 logits, (t, v), of each of several completions of one context.

    One row a completion, filled up on the right: what stands behind a token cannot reach it.
    """
    longest = max(map(len, completions))
    rows = [[*context_ids, *ids, *[context_ids[0]] * (longest - len(ids))] for ids in completions]
    ids = torch.tensor(rows, device=policy.device)
    output = policy.forward(policy.base, input_ids=ids, use_cache=False, logits_to_keep=longest + 1)
    return [row[: len(ids)].float() for row, ids in zip(output.logits[:, :-1], completions, strict=True)]


def shaped(logits_tv: Tensor, ids: Sequence[int], controls: Sampling, stop_ids: Collection[int]) -> Tensor:
    """Return logits, (t, v), after penalties, forbidden repeats and minimum length, each token given those before it.

    Args:
        logits_tv: Raw.
        ids: The completion.
        controls: Temperature and truncation are not applied.
        stop_ids: Tokens that the minimum length holds back.
    """
    shaped_tv = logits_tv.clone()
    penalties = (controls.presence_penalty, controls.frequency_penalty, controls.repetition_penalty) != (0.0, 0.0, 1.0)
    n = controls.no_repeat_ngram
    for at in range(len(ids)):
        before = list(ids[:at])
        for token, times in (Counter(before) if penalties else {}).items():
            z = shaped_tv[at, token]
            z = z / controls.repetition_penalty if z > 0 else z * controls.repetition_penalty
            shaped_tv[at, token] = z - controls.presence_penalty - controls.frequency_penalty * times
        if n and len(before) >= n:
            last = before[len(before) - n + 1 :]
            banned = [before[i + n - 1] for i in range(len(before) - n + 1) if before[i : i + n - 1] == last]
            shaped_tv[at] = _unless_empty(shaped_tv[at], banned)
        if at < controls.min_new_tokens:
            shaped_tv[at] = _unless_empty(shaped_tv[at], sorted(stop_ids))
    return shaped_tv


def truncated(logits_tv: Tensor, controls: Sampling, *, slack: float = 0.0) -> Tensor:
    """Return log-probabilities, (t, v), with top-k, top-p and min-p applied one after the other; -inf outside.

    Args:
        logits_tv: At the temperature of the draw.
        controls: Their truncation is used.
        slack: Nats below the last token kept that are kept as well: what rounding may move across the edge.
    """
    if controls.top_k and controls.top_k < logits_tv.shape[-1]:
        least_t1 = logits_tv.topk(controls.top_k, dim=-1).values[:, -1:]
        logits_tv = logits_tv.masked_fill(logits_tv < least_t1 - slack, -torch.inf)
    if controls.top_p < 1:
        sorted_tv, order_tv = logits_tv.softmax(-1).sort(dim=-1, descending=True)
        before_tv = sorted_tv.cumsum(-1) - sorted_tv
        kept_t = (before_tv < controls.top_p).sum(-1, keepdim=True)
        least_t1 = logits_tv.gather(-1, order_tv.gather(-1, kept_t - 1))
        logits_tv = logits_tv.masked_fill(logits_tv < least_t1 - slack, -torch.inf)
    if controls.min_p:
        least_t1 = logits_tv.amax(-1, keepdim=True) + math.log(controls.min_p)
        logits_tv = logits_tv.masked_fill(logits_tv < least_t1 - slack, -torch.inf)
    return logits_tv.log_softmax(-1)


def _unless_empty(row_v: Tensor, banned: Sequence[int]) -> Tensor:
    """Return a row without some tokens, or as it is where that would leave none."""
    if not banned:
        return row_v
    rest_v = row_v.index_fill(0, torch.tensor(banned, device=row_v.device), -torch.inf)
    return row_v if bool(rest_v.isneginf().all()) else rest_v
