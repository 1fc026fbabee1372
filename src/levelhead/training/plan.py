"""Which samples of an update are computed, and what each task's terms are divided by.

Micro-batches are only a question of memory: every mean is taken over the whole update, so that the gradients of its
micro-batches add up to the gradient of the update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from levelhead.recipe.training import Grpo
from levelhead.training.batch import Sample
from levelhead.training.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Share:
    """What one task brings to an update.

    Attributes:
        weight: Weight of its objective in the sum; the weights of the tasks that are present add up to 1.
        denominator: What its surrogate is divided by, over all micro-batches.
        tokens: Its completion tokens, for the means of KL and entropy.
    """

    weight: float
    denominator: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What the micro-batches of one update have in common.

    Attributes:
        samples: Those that need a forward pass, by task.
        shares: Share of each task that is present.
        temperature: Sampling temperature of the samples; positive.
        at_old_policy: Whether the old log-probabilities are taken to be the new ones: so too for rollouts of older
            weights where ``loss.importance`` corrects for the sampler's.
        generator: Random numbers of losses that draw.
        behind: Whether older weights sampled the rollouts, so that the sampler's log-probabilities are not the new
            ones.
    """

    samples: Mapping[str, list[Sample]]
    shares: Mapping[str, Share]
    temperature: float
    at_old_policy: bool
    generator: torch.Generator
    behind: bool = False


def plan_update(
    samples: Sequence[Sample],
    config: Grpo,
    weights: Mapping[str, float],
    needs_forward: Callable[[Sample], bool],
    *,
    temperature: float,
    at_old_policy: bool,
    seed: int,
    behind: bool = False,
) -> Plan:
    """Lay out an update; zero-std groups count in the denominators, though they need no forward pass.

    Args:
        samples: All samples of the update.
        config: The ``grpo`` section.
        weights: Weight of each task; they add up to 1.
        needs_forward: Whether a sample is to be computed.
        temperature: Sampling temperature; 0, greedy, is scored at 1.
        at_old_policy: Whether the current policy is the old one.
        seed: Seed of losses that draw.
        behind: Whether older weights sampled the rollouts.
    """
    shares: dict[str, Share] = {}
    computed: dict[str, list[Sample]] = {}
    for task, weight in weights.items():
        members = [s for s in samples if s.task == task]
        counted = [s for s in members if not (config.mask_truncated and s.truncated)]
        tokens = sum(s.weight * len(s.logprobs) for s in counted)
        sequences = sum(s.share for s in counted)
        denominator = tokens if config.loss.aggregation == "token_mean" else sequences
        forwarded = [s for s in members if needs_forward(s)]
        forwarded_tokens = sum(s.weight * len(s.logprobs) for s in forwarded)
        if members:
            shares[task] = Share(weight, max(denominator, 1e-9), max(forwarded_tokens, 1e-9))
        if forwarded:
            computed[task] = forwarded
    present = sum(share.weight for share in shares.values())
    shares = {task: Share(s.weight / present, s.denominator, s.tokens) for task, s in shares.items()}
    generator = torch.Generator().manual_seed(seed)
    return Plan(computed, shares, temperature or 1.0, at_old_policy, generator, behind)


def own_part(plan: Plan, ranks: Ranks) -> Plan:
    """Return the plan of an update with this process's groups alone; denominators stay those of all."""
    if ranks.alone:
        return plan
    mine = set(_prefix_groups(plan)[ranks.rank :: ranks.count])
    samples = {task: [s for s in members if s.sequence.prefix_group in mine] for task, members in plan.samples.items()}
    return replace(plan, samples={task: members for task, members in samples.items() if members})


def all_have(plan: Plan, ranks: Ranks) -> bool:
    """Whether every process has live groups of every task in an update, and so the same terms."""
    return all(len(_live(members)) >= ranks.count for members in plan.samples.values())


def _live(members: Sequence[Sample]) -> set[int]:
    return {s.sequence.prefix_group for s in members if s.has_signal and not s.truncated}


def _prefix_groups(plan: Plan) -> list[int]:
    """Groups of an update, task by task, those with signal first: dealt out in turn, they spread the work."""
    order: list[int] = []
    for members in plan.samples.values():
        live = _live(members)
        order += sorted(
            {s.sequence.prefix_group for s in members},
            key=lambda prefix_group: (prefix_group not in live, prefix_group),
        )
    return order
