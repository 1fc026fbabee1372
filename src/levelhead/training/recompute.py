"""What the trainer's own policy and its reference say of drawn tokens, before the first update.

Most recipes need none of it: the sampler has recorded log-probabilities, and entropies fall out of the forward pass
that trains.  What must be known of the whole batch beforehand costs one more forward pass, without gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from levelhead.recipe.training import Grpo
from levelhead.records import Group


@dataclass(frozen=True, slots=True)
class TokenScores:
    """One turn, token by token.

    Attributes:
        logprobs: Log-probabilities under the policy that is about to be updated.
        entropies: Entropies of the distributions that the tokens were drawn from, in nats.
        reference: Log-probabilities under the reference; ``None`` where nobody asked.
    """

    logprobs: tuple[float, ...]
    entropies: tuple[float, ...]
    reference: tuple[float, ...] | None = None


Scores = list[list[list[TokenScores]]]
"""By group, rollout and turn."""


def needs_scores(config: Grpo) -> bool:
    """Whether a recipe needs tokens scored before its first update."""
    updates = config.updates_per_batch * config.epochs
    return (
        "entropies_gkt" in config.advantage.make().needs
        or config.loss.top_entropy is not None
        or (config.loss.importance is not None and updates > 1)
        or config.kl.where == "reward"
    )


@torch.no_grad()
def recompute_logprobs(
    policy: Policy, groups: Sequence[Group], temperature: float, tokens: int, *, reference: bool = False
) -> Scores:
    """Score every token of every turn.

    Args:
        policy: The policy that drew them.
        groups: The rollouts.
        temperature: At which they were drawn; positive.
        tokens: Budget of a forward pass.
        reference: Whether the reference scores them too.
    """
    turns = [(i, turn) for i, group in enumerate(groups) for rollout in group.rollouts for turn in rollout.turns]
    sequences = [TokenSequence(turn.context_ids, turn.completion_ids, prefix_group) for prefix_group, turn in turns]
    by_turn: dict[int, TokenScores] = {}
    for micro in policy.pack(sequences, tokens):
        stats = policy.score(micro, temperature)
        columns = [stats.logp, stats.entropy, *([policy.reference_logp(micro, temperature)] if reference else [])]
        parts = [column.split(list(micro.lengths)) for column in columns]
        for position, index in enumerate(micro.indices):
            by_turn[index] = TokenScores(*(tuple(part[position].tolist()) for part in parts))
    each = iter(by_turn[index] for index in range(len(turns)))
    return [[[next(each) for _ in rollout.turns] for rollout in group.rollouts] for group in groups]
