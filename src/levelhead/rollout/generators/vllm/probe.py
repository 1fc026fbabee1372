"""What a server says of a few sequences, compared with what the trainer says of them.

The server draws short continuations of some contexts and tells their log-probabilities; the trainer computes those of
the same tokens.  The contexts are the same at every sync, and some of those that were asked for last: what a server has
cached of them by older weights comes to light.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from levelhead.policy.rounding import coarsest, exact_policy, tolerance, why_not_exact
from levelhead.rollout.draws import generator
from levelhead.rollout.generators.vllm import peers

CONTEXTS = 2
"""Contexts that are the same at every sync."""
LENGTH = 288
"""Tokens of each: more than two blocks of any cache."""
RECENT = 4
"""Contexts of requests that were served before the sync."""
DRAWN = 16
"""Tokens drawn from each context."""
EXACT = 1e-4
"""Largest mean gap in float32, in nats a token: some hundred times what two libraries' float32 products leave."""
ROUNDINGS = 4.0
"""A server may be this many times as far off as rounding alone drives the trainer's own model."""
_TOKENS = 16_384

Pair = tuple[tuple[int, ...], tuple[int, ...]]
"""Context and completion, as token ids."""


@dataclass(frozen=True, slots=True)
class Gap:
    """How far two accounts of the same tokens lie apart, in nats a token.

    Attributes:
        mean: Mean absolute difference.
        most: Largest one.
    """

    mean: float
    most: float

    @classmethod
    def between(cls, ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> Gap:
        """Compare two accounts, sequence by sequence."""
        gaps = [abs(a - b) for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True)]
        return cls(sum(gaps) / len(gaps), max(gaps)) if gaps else cls(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Account:
    """What one server drew and said.

    Attributes:
        pairs: Contexts and what was drawn.
        logprobs: Of each drawn token.
    """

    pairs: tuple[Pair, ...]
    logprobs: tuple[tuple[float, ...], ...]


def contexts(policy: Policy, name: str) -> list[tuple[int, ...]]:
    """Return contexts of ordinary tokens that depend on the name and the vocabulary alone."""
    length = max(1, min(LENGTH, policy.context // 2))
    special = {*policy.codec.stop_ids, policy.codec.pad_id}
    ids = [token for token in range(policy.codec.vocab_size) if token not in special]
    draws = [generator(0, "probe", name, i).integers(len(ids), size=length) for i in range(CONTEXTS)]
    return [tuple(ids[int(place)] for place in places) for places in draws]


@torch.no_grad()
def logprobs(policy: Policy, pairs: Sequence[Pair]) -> list[tuple[float, ...]]:
    """Return the log-probability of every token of each completion, at temperature 1, as the trainer computes it.

    All processes of a run call it together, and go on from what the first one has computed.
    """
    sequences = [TokenSequence(context, completion, i) for i, (context, completion) in enumerate(pairs)]
    rows: dict[int, tuple[float, ...]] = {}
    for micro in policy.pack(sequences, _TOKENS):
        parts = policy.score(micro).logp.split(list(micro.lengths))
        rows |= {index: tuple(part.tolist()) for index, part in zip(micro.indices, parts, strict=True)}
    return peers.share([rows[i] for i in range(len(pairs))])


def bound(policy: Policy, pairs: Sequence[Pair], ours: Sequence[Sequence[float]]) -> float:
    """Return the largest mean gap that is no fault: measured on these sequences where the model rounds coarsely."""
    if coarsest(policy) == torch.float32:
        return EXACT
    if why_not_exact(policy) is not None:
        return tolerance(policy).mean
    return max(EXACT, ROUNDINGS * Gap.between(ours, logprobs(exact_policy(policy), pairs)).mean)
