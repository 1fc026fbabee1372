"""The policy computed the slow and obvious way, for others to be measured against.

One sequence at a time: no padding, no attention mask, no position ids, no cache, no packing, no blocks.  Nothing here
uses the sampler's or the trainer's code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import Sampling


def logits(policy: Policy, context_ids: Sequence[int], completion_ids: Sequence[int]) -> Tensor:
    """Return the float32 logits, (t, v), that predict each of the t completion tokens; differentiable."""
    ids = torch.tensor([[*context_ids, *completion_ids]], device=policy.device)
    with policy.autocast():
        output = policy.base(input_ids=ids, use_cache=False, logits_to_keep=len(completion_ids) + 1)
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
    with policy.autocast():
        table: Tensor = policy.base(input_ids=ids, use_cache=False).logits.float()
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
