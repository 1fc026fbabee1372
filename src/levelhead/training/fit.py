"""Whether answers are likelier behind their own prompts than behind others', as supervised fine-tuning teaches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from levelhead.records import Prompt

BELONG = 0.01
"""p-value from which answers fit their own prompts better than others'."""
PACKED = 1 << 13
"""Tokens that are computed at once."""


@torch.no_grad()
def likelihoods(policy: Policy, prompts: Sequence[Prompt], answers: Sequence[str]) -> NDArray[np.float64]:
    """Return how much likelier answer j is behind prompt i than behind the others, in nats a token, (n, n).

    Args:
        policy: Asked at temperature 1.
        prompts: n of them.
        answers: One a prompt.
    """
    n = len(prompts)
    sequences = []
    for i, prompt in enumerate(prompts):
        for answer in answers:
            pair = policy.codec.demonstration(prompt.messages, answer)
            sequences.append(TokenSequence(pair.context_ids, pair.completion_ids, i))
    fit = np.zeros(n * n)
    for micro in policy.pack(sequences, max(PACKED, max(len(s.input_ids) for s in sequences))):
        parts = torch.split(policy.score(micro).logp.float(), list(micro.lengths))
        for index, part in zip(micro.indices, parts, strict=True):
            fit[index] = float(part.mean())
    fit_nn = fit.reshape(n, n)
    centred: NDArray[np.float64] = fit_nn - fit_nn.mean(axis=0, keepdims=True)
    return centred
