"""From scored groups to training samples: advantages by task, dead groups set aside, reward metrics."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from levelhead.objective import advantages
from levelhead.policy.packing import TokenSequence
from levelhead.recipe.objective import Advantage
from levelhead.records import Group, Rollout

SOLVED_AT = 0.5
"""A group whose rewards are all equal counts as solved from this reward on, else as failed."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One (context, completion) pair with all that its loss needs.

    Attributes:
        sequence: The tokens.
        task: Name of its task.
        advantage: Of its rollout.
        logprobs: What the sampler recorded, at the sampling temperature.
        weight: 1 / turns of its rollout: a long episode weighs what a short one does.
        live: Whether its group carries signal.
        truncated: Whether its rollout ran out of budget.
    """

    sequence: TokenSequence
    task: str
    advantage: float
    logprobs: tuple[float, ...]
    weight: float
    live: bool
    truncated: bool


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


def make_batch(groups: Sequence[Group], recipe: Advantage) -> Batch:
    """Compute advantages within each task and flatten rollouts into samples.

    Groups of one size are taken together; a group that lost all but one of its rollouts teaches nothing.
    """
    found: dict[int, tuple[list[float], bool]] = {}
    buckets: dict[tuple[str, int], list[int]] = {}
    for index, group in enumerate(groups):
        buckets.setdefault((group.prompt.task, len(group.rollouts)), []).append(index)
    for (_, size), members in buckets.items():
        if size < 2:
            found.update((i, ([0.0] * size, False)) for i in members)
            continue
        result = _advantages([groups[i] for i in members], recipe)
        for row, i in enumerate(members):
            found[i] = (result.values_gk[row].tolist(), bool(result.live_g[row]))
    samples = [_samples(i, group, *found[i]) for i, group in enumerate(groups)]
    values = _metrics(groups, [found[i][1] for i in range(len(groups))])
    return Batch(samples, values, [found[i][0] for i in range(len(groups))])


def _advantages(groups: Sequence[Group], recipe: Advantage) -> advantages.Advantages:
    rewards_gk = np.array([group.rewards for group in groups], dtype=np.float64)
    extras = dict(recipe.options())
    needed = advantages.inputs(recipe.kind)
    if "lengths_gk" in needed or recipe.statistics == "tokens":
        extras["lengths_gk"] = np.array([[float(r.length) for r in group.rollouts] for group in groups])
    return advantages.compute(recipe.kind, rewards_gk, ddof=recipe.ddof, eps=recipe.eps, clip=recipe.clip, **extras)


def _samples(bundle: int, group: Group, values: Sequence[float], live: bool) -> list[Sample]:
    return [
        Sample(
            TokenSequence(turn.context_ids, turn.completion_ids, bundle),
            group.prompt.task,
            value,
            turn.logprobs,
            1.0 / len(rollout.turns),
            live,
            rollout.truncated,
        )
        for rollout, value in zip(group.rollouts, values, strict=True)
        for turn in rollout.turns
    ]


def _metrics(groups: Sequence[Group], live: Sequence[bool]) -> dict[str, float]:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    if not rollouts:
        return {}
    values = {
        "reward": statistics.fmean(r.reward for r in rollouts),
        "reward_std": statistics.fmean(statistics.pstdev(g.rewards) for g in groups if g.rollouts),
        "frac_reward_zero_std": 1 - statistics.fmean(live),
        "validity": _validity(rollouts),
    }
    dead = [group for group, alive in zip(groups, live, strict=True) if not alive and group.rollouts]
    solved = sum(group.rewards[0] >= SOLVED_AT for group in dead)
    values["dead_groups/all_solved"] = solved / len(groups)
    values["dead_groups/all_failed"] = (len(dead) - solved) / len(groups)
    by_task: dict[str, list[Rollout]] = {}
    for group in groups:
        by_task.setdefault(group.prompt.task, []).extend(group.rollouts)
    for task, members in by_task.items():
        if members:
            values[f"reward/{task}"] = statistics.fmean(r.reward for r in members)
            values[f"validity/{task}"] = _validity(members)
            values |= _parts(members, f"rewards/{task}/" if len(by_task) > 1 else "rewards/")
    return values | _lengths(rollouts)


def _validity(rollouts: Sequence[Rollout]) -> float:
    return statistics.fmean(r.score is not None and r.score.valid for r in rollouts)


def _parts(rollouts: Sequence[Rollout], prefix: str) -> Mapping[str, float]:
    columns: dict[str, list[float]] = {}
    for rollout in rollouts:
        for name, value in (rollout.score.parts if rollout.score else {}).items():
            columns.setdefault(name, []).append(value)
    means = {f"{prefix}{name}/mean": statistics.fmean(column) for name, column in columns.items()}
    return means | {f"{prefix}{name}/std": statistics.pstdev(column) for name, column in columns.items()}


def _lengths(rollouts: Sequence[Rollout]) -> dict[str, float]:
    lengths = [rollout.length for rollout in rollouts]
    ended = [rollout.length for rollout in rollouts if not rollout.truncated]
    values = {
        "completions/mean_length": statistics.fmean(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": 1 - len(ended) / len(lengths),
        "num_turns": statistics.fmean(len(rollout.turns) for rollout in rollouts),
    }
    if ended:
        values["completions/mean_terminated_length"] = statistics.fmean(ended)
    return values
