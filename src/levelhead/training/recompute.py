"""What the trainer's own policy and its reference say of sampled tokens, before the first update.

Most recipes need none of it: the sampler has recorded log-probabilities, and entropies fall out of the forward pass
that trains.  What must be known of the whole batch beforehand costs one more forward pass, without gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import Sampling
from levelhead.recipe.training import Grpo
from levelhead.records import Group, Rollout
from levelhead.training.ranks import Ranks


@dataclass(frozen=True, slots=True)
class TokenStatistics:
    """One turn, token by token.

    Attributes:
        logprobs: Log-probabilities under the policy that is about to be updated.
        entropies: Entropies of the distributions that the tokens were sampled from, in nats.
        reference: Log-probabilities under the reference; ``None`` where nobody asked.
    """

    logprobs: tuple[float, ...]
    entropies: tuple[float, ...]
    reference: tuple[float, ...] | None = None


Recomputed = list[list[list[TokenStatistics]]]
"""What the trainer says of a batch's tokens, by group, rollout and turn."""


def needs_recompute(config: Grpo) -> bool:
    """Whether a recipe needs what the trainer says of tokens before its first update."""
    updates = config.updates_per_batch * config.epochs
    return (
        "entropies_gkt" in config.advantage.make().needs
        or config.loss.top_entropy is not None
        or (config.loss.importance is not None and updates > 1)
        or config.kl.where == "reward"
    )


def distorts(controls: Sampling) -> bool:
    """Whether tokens are sampled from another distribution than the policy's own at the temperature."""
    cut = controls.top_k > 0 or controls.top_p < 1 or controls.min_p > 0
    penalised = controls.presence_penalty or controls.frequency_penalty or controls.repetition_penalty != 1
    return bool(cut or penalised or controls.min_new_tokens or controls.no_repeat_ngram)


def with_own_logprobs(groups: Sequence[Group], recomputed: Recomputed) -> list[Group]:
    """Return groups whose turns hold the policy's log-probabilities, where a sampler has told those of its draws.

    Args:
        groups: The rollouts.
        recomputed: Of all of their tokens.
    """
    return [
        replace(group, rollouts=tuple(_with_logprobs(r, said) for r, said in zip(group.rollouts, rows, strict=True)))
        for group, rows in zip(groups, recomputed, strict=True)
    ]


def _with_logprobs(rollout: Rollout, turns: Sequence[TokenStatistics]) -> Rollout:
    pairs = zip(rollout.turns, turns, strict=True)
    return replace(rollout, turns=tuple(replace(turn, logprobs=said.logprobs) for turn, said in pairs))


@torch.no_grad()
def recompute_logprobs(
    policy: Policy,
    groups: Sequence[Group],
    temperature: float,
    tokens: int,
    *,
    reference: bool = False,
    ranks: Ranks | None = None,
) -> Recomputed:
    """Score every token of every turn; of several processes, each scores the turns of its own groups.

    Args:
        policy: The policy that sampled them.
        groups: The rollouts.
        temperature: At which they were sampled; positive.
        tokens: Budget of a forward pass.
        reference: Whether the reference scores them too.
        ranks: The processes that share the work.
    """
    ranks = ranks or Ranks()
    turns = [(i, turn) for i, group in enumerate(groups) for rollout in group.rollouts for turn in rollout.turns]
    sequences = [TokenSequence(turn.context_ids, turn.completion_ids, prefix_group) for prefix_group, turn in turns]
    own = [index for index, (prefix_group, _) in enumerate(turns) if prefix_group % ranks.count == ranks.rank]
    by_turn: dict[int, TokenStatistics] = {}
    micros = policy.pack([sequences[index] for index in own], tokens) if own else []
    real = len(micros)
    if policy.sharded and sequences:  # every pass is a collective
        micros = ranks.filled_up(micros, policy.pack(sequences[:1], tokens)[0])
    for number, micro in enumerate(micros):
        stats = policy.score(micro, temperature)
        columns = [stats.logp, stats.entropy, *([policy.reference_logp(micro, temperature)] if reference else [])]
        if number >= real:
            continue
        parts = [column.split(list(micro.lengths)) for column in columns]
        for position, index in enumerate(micro.indices):
            by_turn[own[index]] = TokenStatistics(*(tuple(part[position].tolist()) for part in parts))
    by_turn = {index: score for part in ranks.gathered(by_turn) for index, score in part.items()}
    each = iter(by_turn[index] for index in range(len(turns)))
    return [[[next(each) for _ in rollout.turns] for rollout in group.rollouts] for group in groups]
