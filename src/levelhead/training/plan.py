"""Which samples of an update are computed, what each task's terms are divided by, and what each process computes.

Micro-batches are only a question of memory: every mean is taken over the whole update, so that the gradients of its
micro-batches add up to the gradient of the update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from levelhead.training.batch import Sample
from levelhead.training.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Share:
    """What one task brings to an update.

    Attributes:
        weight: Weight of its objective in the sum; the weights of the tasks that are present add up to 1.
        denominator: What its surrogate is divided by, over all micro-batches: weighted tokens, or rollouts.
        tokens: Completion tokens of its samples that need a forward pass, each times its turn's weight, for the
            means of KL and entropy.
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
