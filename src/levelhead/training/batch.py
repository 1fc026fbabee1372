"""From scored groups to training samples, and what is reported of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from levelhead import metrics as metric
from levelhead.objective.masks import entropy_threshold
from levelhead.policy.packing import TokenSequence
from levelhead.recipe.training import Grpo
from levelhead.records import Group, Rollout
from levelhead.rollout.draws import derive
from levelhead.training.advantages import GroupAdvantages
from levelhead.training.answers import SOLVED_AT
from levelhead.training.recompute import Recomputed, TokenStatistics

MOST_TURNS = 16
"""Turns whose rewards have a metric of their own."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One (context, completion) pair with all that its loss needs.

    Attributes:
        sequence: The tokens.
        task: Name of its task.
        advantage: Of its rollout.
        logprobs: What the sampler recorded, at the sampling temperature.
        weight: 1 / turns of its rollout, so that a long episode weighs what a short one does; 1 where turns are summed.
        has_signal: Whether its group carries signal.
        truncated: Whether its rollout ran out of budget.
        behaviour: Log-probabilities of the draws, after every sampling control.
        advantages: Of each token, where the estimator tells them apart.
        old: Log-probabilities that the trainer computed before the first update, where it did.
        keep: 1 for tokens to learn from and 0 for others, where not all count.
        centred_reward: What its rollout's reward, shaped, is above the mean of its group.
        balance: Factor of its surrogate: what its group weighs among the strata of its task.
        share: 1 / turns of its rollout: the samples of a rollout are one in sum.
    """

    sequence: TokenSequence
    task: str
    advantage: float
    logprobs: tuple[float, ...]
    weight: float
    has_signal: bool
    truncated: bool
    behaviour: tuple[float, ...] = ()
    advantages: tuple[float, ...] | None = None
    old: tuple[float, ...] | None = None
    keep: tuple[float, ...] | None = None
    centred_reward: float = 0.0
    balance: float = 1.0
    share: float = 1.0

    @property
    def old_logprobs(self) -> tuple[float, ...]:
        """Log-probabilities of the policy that the batch's updates begin with."""
        return self.logprobs if self.old is None else self.old


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of a rollout batch, group by group.

    Attributes:
        groups: Samples of each group, in the order of the prompts.
        values: Reward and length metrics.
        advantages: Advantage of each rollout of each group, for the record.
    """

    groups: list[list[Sample]]
    values: dict[str, float]
    advantages: list[list[float]]


def make_batch(
    groups: Sequence[Group],
    group_advantages: Sequence[GroupAdvantages],
    recomputed: Recomputed | None = None,
    top_entropy: float | None = None,
    *,
    old_from_recomputed: bool = True,
    sum_turns: bool = False,
) -> Batch:
    """Flatten the rollouts of all groups into samples.

    Args:
        groups: Scored.
        group_advantages: Of each group.
        recomputed: What was recomputed of their tokens, where it was.
        top_entropy: Share of the batch's tokens to learn from, those of highest entropy; all unless given.
        old_from_recomputed: Whether recomputed log-probabilities, where there are any, are the old ones of the updates.
        sum_turns: Whether each turn of a rollout weighs 1, and not the rollout.
    """
    threshold = None
    if top_entropy is not None and recomputed is not None:
        threshold = _threshold(recomputed, top_entropy)
    samples = [
        _samples(
            i, group, assigned, None if recomputed is None else recomputed[i], threshold, old_from_recomputed, sum_turns
        )
        for i, (group, assigned) in enumerate(zip(groups, group_advantages, strict=True))
    ]
    return Batch(
        samples,
        _metrics(groups, group_advantages) | _agreement(samples),
        [assigned.values for assigned in group_advantages],
    )


def deal_minibatches(batch: Batch, config: Grpo, step: int, seed: int) -> list[list[Sample]]:
    """Return the samples of each optimizer step of a batch, epoch after epoch.

    Every mini-batch gets as many groups of each task, within one; later epochs are dealt in a new order.

    Args:
        batch: The samples of all groups.
        config: The ``grpo`` section, for ``epochs`` and ``updates_per_batch``.
        step: Step of the run, from 1.
        seed: Seed of the orders.
    """
    tasks = [group[0].task if group else "" for group in batch.groups]
    minibatches = []
    for epoch in range(config.epochs):
        order = torch.arange(len(batch.groups))
        if epoch:
            generator = torch.Generator().manual_seed(derive(seed, "deal", step, epoch))
            order = order[torch.randperm(len(order), generator=generator)]
        dealt = _deal(order.tolist(), tasks, config.updates_per_batch)
        minibatches += [[sample for i in members for sample in batch.groups[i]] for members in dealt]
    return minibatches


def _deal(order: Sequence[int], tasks: Sequence[str], parts: int) -> list[list[int]]:
    """Deal groups into parts, each of which gets as many of every task, within one, and keeps their order.

    Args:
        order: Indices of the groups.
        tasks: Task of each group, by index.
        parts: How many.
    """
    by_task = sorted(range(len(order)), key=lambda place: tasks[order[place]])
    return [[order[place] for place in sorted(by_task[part::parts])] for part in range(parts)]


def _samples(
    prefix_group: int,
    group: Group,
    assigned: GroupAdvantages,
    recomputed: list[list[TokenStatistics]] | None,
    threshold: float | None,
    old_from_recomputed: bool,
    sum_turns: bool,
) -> list[Sample]:
    samples: list[Sample] = []
    mean = statistics.fmean(assigned.shaped) if assigned.shaped else 0.0
    for k, rollout in enumerate(group.rollouts):
        tokens = None if assigned.tokens is None else iter(assigned.tokens[k])
        for t, turn in enumerate(rollout.turns):
            turn_statistics = None if recomputed is None else recomputed[k][t]
            samples.append(
                Sample(
                    sequence=TokenSequence(turn.context_ids, turn.completion_ids, prefix_group),
                    task=group.prompt.task,
                    advantage=assigned.values[k],
                    logprobs=turn.logprobs,
                    weight=1.0 if sum_turns else 1.0 / len(rollout.turns),
                    share=1.0 / len(rollout.turns),
                    has_signal=assigned.has_signal,
                    truncated=rollout.truncated,
                    behaviour=turn.behaviour_logprobs,
                    advantages=None if tokens is None else tuple(next(tokens) for _ in turn.completion_ids),
                    old=turn_statistics.logprobs if turn_statistics is not None and old_from_recomputed else None,
                    keep=_learned(turn_statistics, threshold),
                    centred_reward=assigned.shaped[k] - mean if assigned.shaped else 0.0,
                    balance=assigned.weight,
                )
            )
    return samples


def _agreement(groups: Sequence[Sequence[Sample]]) -> dict[str, float]:
    """Cosine of advantages and centred rewards over a batch: 1 where each advantage is its centred reward."""
    pairs = [(sample.advantage, sample.centred_reward) for group in groups for sample in group if sample.has_signal]
    size = math.sqrt(math.fsum(a * a for a, _ in pairs) * math.fsum(m * m for _, m in pairs))
    return {metric.AGREEMENT: math.fsum(a * m for a, m in pairs) / size} if 0 < size < math.inf else {}


def _threshold(recomputed: Recomputed, fraction: float) -> float | None:
    entropies = [h for group in recomputed for turns in group for turn in turns for h in turn.entropies]
    if not entropies:
        return None
    row = torch.tensor([entropies], dtype=torch.float64)
    return entropy_threshold(row, torch.ones_like(row), fraction)


def _learned(turn: TokenStatistics | None, threshold: float | None) -> tuple[float, ...] | None:
    """1 for the tokens whose entropy reaches the threshold, 0 for the others; ``None`` where all are learned from."""
    if turn is None or threshold is None:
        return None
    return tuple(float(entropy >= threshold) for entropy in turn.entropies)


def _metrics(groups: Sequence[Group], group_advantages: Sequence[GroupAdvantages]) -> dict[str, float]:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    if not rollouts:
        return {}
    values = {
        metric.REWARD: statistics.fmean(r.reward for r in rollouts),
        metric.REWARD_STD: statistics.fmean(statistics.pstdev(g.rewards) for g in groups if g.rollouts),
        metric.VALIDITY: _validity(rollouts),
        metric.LIVE_GROUPS: statistics.fmean(assigned.has_signal for assigned in group_advantages),
        metric.SAMPLED_ENTROPY: _surprise(rollouts),
    }
    values |= _without_contrast(groups, group_advantages)
    by_task: dict[str, list[Rollout]] = {}
    for group in groups:
        by_task.setdefault(group.prompt.task, []).extend(group.rollouts)
    for task, members in by_task.items():
        if members:
            values[metric.REWARD_BY_TASK.of(task)] = statistics.fmean(r.reward for r in members)
            values[metric.VALIDITY_BY_TASK.of(task)] = _validity(members)
            values |= _parts(members, task if len(by_task) > 1 else None)
            values |= _by_turn(members, task)
            shaped = [
                x for g, c in zip(groups, group_advantages, strict=True) if g.prompt.task == task for x in c.shaped
            ]
            if shaped != [r.reward for r in members]:
                values[metric.REWARD_SHAPED.of(task)] = statistics.fmean(shaped)
    return values | _lengths(rollouts)


def _without_contrast(groups: Sequence[Group], group_advantages: Sequence[GroupAdvantages]) -> dict[str, float]:
    """Groups whose rewards are all equal once shaped, by side; one with nothing left in it has no side.

    One whose turns were paid otherwise is not among them where the estimator told its turns apart.
    """
    pairs = zip(groups, group_advantages, strict=True)
    equal = [(group, one) for group, one in pairs if not one.shaped or max(one.shaped) == min(one.shaped)]
    flat = [
        g for g, one in equal if not (one.tokens and one.has_signal and len({r.turn_rewards for r in g.rollouts}) > 1)
    ]
    solved = sum(bool(group.rollouts) and statistics.fmean(group.rewards) >= SOLVED_AT for group in flat)
    failed = sum(bool(group.rollouts) for group in flat) - solved
    return {
        metric.ZERO_STD: len(flat) / len(groups),
        metric.ALL_SOLVED: solved / len(groups),
        metric.ALL_FAILED: failed / len(groups),
    }


def _validity(rollouts: Sequence[Rollout]) -> float:
    return statistics.fmean(r.score is not None and r.score.valid for r in rollouts)


def _surprise(rollouts: Sequence[Rollout]) -> float:
    """Mean -log p of the sampled tokens, in nats: an estimate of the entropy that needs no forward pass."""
    logprobs = [logprob for rollout in rollouts for turn in rollout.turns for logprob in turn.logprobs]
    return -statistics.fmean(logprobs) if logprobs else 0.0


def _parts(rollouts: Sequence[Rollout], task: str | None) -> Mapping[str, float]:
    """Mean and standard deviation of each named reward, under the task's name where one is given."""
    columns: dict[str, list[float]] = {}
    for rollout in rollouts:
        for name, value in rollout.parts.items():
            columns.setdefault(name, []).append(value)
    mean_of, std_of = (
        (metric.PART_MEAN, metric.PART_STD) if task is None else (metric.TASK_PART_MEAN, metric.TASK_PART_STD)
    )
    where = () if task is None else (task,)
    means = {mean_of.of(*where, name): statistics.fmean(column) for name, column in columns.items()}
    return means | {std_of.of(*where, name): statistics.pstdev(column) for name, column in columns.items()}


def _by_turn(rollouts: Sequence[Rollout], task: str) -> dict[str, float]:
    """Mean of what each turn earned, over the rollouts that have it."""
    paid = [rollout.turn_rewards for rollout in rollouts if rollout.turn_rewards]
    return {
        metric.TURN_REWARD.of(task, str(n + 1)): statistics.fmean(row[n] for row in paid if len(row) > n)
        for n in range(min(max(map(len, paid), default=0), MOST_TURNS))
    }


def _lengths(rollouts: Sequence[Rollout]) -> dict[str, float]:
    lengths = [rollout.length for rollout in rollouts]
    ended = [rollout.length for rollout in rollouts if not rollout.truncated]
    values = {
        metric.MEAN_LENGTH: statistics.fmean(lengths),
        metric.MIN_LENGTH: float(min(lengths)),
        metric.MAX_LENGTH: float(max(lengths)),
        metric.CLIPPED_RATIO: 1 - len(ended) / len(lengths),
        metric.NUM_TURNS: statistics.fmean(len(rollout.turns) for rollout in rollouts),
    }
    if ended:
        values[metric.MEAN_TERMINATED_LENGTH] = statistics.fmean(ended)
    return values
