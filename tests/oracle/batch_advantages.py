"""Identities between rewards, advantages and the samples that are trained on."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TypeAlias

from levelhead import metrics as metric
from levelhead.recipe.objective import Shaping
from levelhead.recipe.training import Grpo
from levelhead.records import Group
from levelhead.training.advantages import GroupAdvantages
from levelhead.training.batch import Batch, Sample
from oracle.violation import Violation, close

Rows: TypeAlias = Sequence[Sequence[float]]
"""One number a rollout, group by group."""
SAME = 1e-6
"""Relative difference of two float64 computations of an advantage."""


@dataclass(frozen=True, slots=True)
class BatchAdvantages:
    """A batch with its advantages.

    Attributes:
        grpo: The ``grpo`` section.
        shaping: Of each task.
        groups: As they were scored.
        credits: Of each group.
        batch: The samples made from them.
        minibatches: Samples of each update, epoch after epoch.
    """

    grpo: Grpo
    shaping: Mapping[str, Shaping]
    groups: Sequence[Group]
    credits: Sequence[GroupAdvantages]
    batch: Batch
    minibatches: Sequence[Sequence[Sample]]


def rewards_kept(step: BatchAdvantages) -> Iterator[Violation]:
    """Rewards that no shaping was asked for reach the estimator as the task gave them."""
    for group, assigned in zip(step.groups, step.credits, strict=True):
        if step.shaping.get(group.prompt.task) != Shaping() or tuple(assigned.shaped) == group.rewards:
            continue
        text = (
            f"rewards of prompt {group.prompt.id!r} are {_few(group.rewards)}, and advantages are made from "
            f"{_few(assigned.shaped)}, though the task shapes none"
        )
        yield Violation("rewards-changed", text, {"prompt": group.prompt.id})
        return


def advantages(step: BatchAdvantages) -> Iterator[Violation]:
    """Advantages are the estimator's formula on these rewards, worked out once more; so their agreement is known."""
    wanted = expected(step)
    pairs = [
        (index, seen, right)
        for index, rows in sorted(wanted.items())
        for seen, right in zip(step.credits[index].values, rows, strict=True)
    ]
    most = max((abs(right) for _, _, right in pairs), default=0.0)
    wrong = next(((i, a, b) for i, a, b in pairs if not close(a, b, SAME, max(SAME * most, sys.float_info.min))), None)
    kind = step.grpo.advantage.kind
    if wrong is not None:
        index, seen, right = wrong
        group, assigned = step.groups[index], step.credits[index]
        text = (
            f"an advantage of prompt {group.prompt.id!r} is {seen:.6g}, and {kind} makes {right:.6g} of the rewards "
            f"{_few(assigned.shaped)}: {_cause(assigned.values, wanted[index])}"
        )
        yield Violation("advantage", text, {"seen": seen, "expected": right, "rewards": list(assigned.shaped)[:16]})
    logged = step.batch.values.get(metric.AGREEMENT)
    centred_rewards = {i: _centred(step.credits[i].shaped) for i in wanted}
    unknown = any(assigned.has_signal for i, assigned in enumerate(step.credits) if i not in wanted)
    if logged is None or unknown or wrong is not None:
        return
    weights = [[len(rollout.turns) for rollout in group.rollouts] for group in step.groups]
    triples = [
        (a, m, n)
        for i, row in wanted.items()
        if step.credits[i].has_signal
        for a, m, n in zip(row, centred_rewards[i], weights[i], strict=True)
    ]
    size = math.sqrt(math.fsum(n * a * a for a, _, n in triples) * math.fsum(n * m * m for _, m, n in triples))
    right = math.fsum(n * a * m for a, m, n in triples) / size if size else math.nan
    if size and not close(logged, right, 1e-5, 1e-5):
        text = (
            f"{metric.AGREEMENT} is {logged:.5f}, and these rewards make it {right:.5f} with {kind}: samples carry "
            "other advantages or rewards than their rollouts"
        )
        yield Violation("advantage-agreement", text, {"seen": logged, "expected": right})


def expected(step: BatchAdvantages) -> dict[int, list[float]]:
    """Advantages of the groups whose estimator has a formula here, by index; groups too small to compare are 0."""
    recipe = step.grpo.advantage
    if recipe.kind not in FORMULAS or step.grpo.kl.where == "reward":
        return {}
    buckets: dict[tuple[str, int], list[int]] = {}
    for index, group in enumerate(step.groups):
        if len(group.rollouts) > 1:
            buckets.setdefault((group.prompt.task, len(group.rollouts)), []).append(index)
    by_group: dict[int, list[float]] = {}
    for members in buckets.values():
        rows = [step.credits[i].shaped for i in members]
        lengths = [[float(rollout.length) for rollout in step.groups[i].rollouts] for i in members]
        row_values = FORMULAS[recipe.kind](rows, lengths, step.grpo)
        for index, row in zip(members, row_values, strict=True):
            bound = recipe.clip
            by_group[index] = [v if bound is None else max(min(v, bound), -bound) for v in row]
    return by_group


def _few(row: Sequence[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in row[:8]) + (", ..." if len(row) > 8 else "")


def _centred(row: Sequence[float]) -> list[float]:
    if max(row) == min(row):
        return [0.0] * len(row)
    mean = math.fsum(row) / len(row)
    return [value - mean for value in row]


def _deviation(row: Sequence[float], ddof: int) -> float:
    n = len(row)
    return stdev(row) * math.sqrt((n - 1) / (n - ddof))


def _grpo(rows: Rows, _lengths: Rows, grpo: Grpo) -> list[list[float]]:
    """Shao et al. 2024: (r - mean) / (std + eps) within the group; 0 in a group of equal rewards."""
    recipe = grpo.advantage
    result = []
    for row in rows:
        scale = _deviation(row, recipe.ddof) + recipe.eps
        result.append([value / scale if value else 0.0 for value in _centred(row)])
    return result


def _dr_grpo(rows: Rows, _lengths: Rows, _grpo_section: Grpo) -> list[list[float]]:
    """Liu et al. 2025: r - mean of the group."""
    return [_centred(row) for row in rows]


def _rloo(rows: Rows, _lengths: Rows, _grpo_section: Grpo) -> list[list[float]]:
    """Ahmadian et al. 2024: r less the mean of the others."""
    return [
        [0.0] * len(row) if max(row) == min(row) else [v - (math.fsum(row) - v) / (len(row) - 1) for v in row]
        for row in rows
    ]


def _opo(rows: Rows, lengths: Rows, _grpo_section: Grpo) -> list[list[float]]:
    """Hao et al. 2025: r less the mean weighted by length."""
    result = []
    for row, counts in zip(rows, lengths, strict=True):
        baseline = math.fsum(r * n for r, n in zip(row, counts, strict=True)) / math.fsum(counts)
        result.append([0.0] * len(row) if max(row) == min(row) else [r - baseline for r in row])
    return result


def _batch(rows: Rows, _lengths: Rows, grpo: Grpo) -> list[list[float]]:
    """Liu et al. 2025 (Lite PPO): r less the group's mean, over the deviation of all rewards of the batch."""
    scale = _deviation([value for row in rows for value in row], grpo.advantage.ddof)
    return [[value / (scale + grpo.advantage.eps) if value else 0.0 for value in _centred(row)] for row in rows]


FORMULAS: Mapping[str, Callable[[Rows, Rows, Grpo], list[list[float]]]] = {
    "grpo": _grpo,
    "dr_grpo": _dr_grpo,
    "rloo": _rloo,
    "opo": _opo,
    "batch": _batch,
}
"""Estimators that are worked out once more, in plain Python from their papers."""


def _cause(seen: Sequence[float], wanted: Sequence[float]) -> str:
    """In which simple way advantages are off."""
    size = max((abs(v) for v in wanted), default=0.0)

    def same(other: Sequence[float]) -> bool:
        return all(close(a, b, 1e-4, 1e-4 * size) for a, b in zip(seen, other, strict=True))

    if same([-v for v in wanted]):
        return "their sign is lost"
    if all(close(a, b, 1e-4, 1e-4 * size) for a, b in zip(sorted(seen), sorted(wanted), strict=True)):
        return "they belong to other rollouts"
    square = math.fsum(v * v for v in wanted)
    factor = math.fsum(a * b for a, b in zip(seen, wanted, strict=True)) / square if square else 0.0
    if square and same([factor * v for v in wanted]):
        return f"they are {factor:.4g} times as large"
    shift = fmean(a - b for a, b in zip(seen, wanted, strict=True))
    return f"they are {shift:.4g} too high" if same([v + shift for v in wanted]) else "in no simple way"


def samples_once(step: BatchAdvantages) -> Iterator[Violation]:
    """Samples carry the tokens and advantages of their rollouts, and each is trained on once an epoch."""
    counts: Counter[int] = Counter()
    for group, assigned, samples in zip(step.groups, step.credits, step.batch.groups, strict=True):
        turns = [(turn, assigned.values[k]) for k, r in enumerate(group.rollouts) for turn in r.turns]
        mine = [(s.sequence.context_ids, s.sequence.completion_ids, s.advantage) for s in samples]
        if mine != [(turn.context_ids, turn.completion_ids, value) for turn, value in turns]:
            text = f"samples of prompt {group.prompt.id!r} are not its rollouts with their advantages, turn by turn"
            yield Violation("samples", text, {"prompt": group.prompt.id, "turns": len(turns), "samples": len(mine)})
            return
        counts.update(id(sample) for sample in samples)
    trained = Counter(id(sample) for part in step.minibatches for sample in part)
    wanted = dict.fromkeys(counts, step.grpo.epochs)
    if dict(trained) != wanted:
        missing = sum(1 for key in wanted if trained[key] < step.grpo.epochs)
        often = sum(1 for key in trained if trained[key] > wanted.get(key, 0))
        text = (
            f"of {len(wanted)} samples {missing} are trained on less than once in each of {step.grpo.epochs} epochs, "
            f"and {often} more often"
        )
        yield Violation("samples", text, {"samples": len(wanted), "missing": missing, "repeated": often})


def rewards_logged(step: BatchAdvantages) -> Iterator[Violation]:
    """Rewards that are logged are the means over the rollouts of this step, of all and of each task."""
    rewards: dict[str, list[float]] = {}
    for group in step.groups:
        rewards.setdefault(metric.REWARD_BY_TASK.of(group.prompt.task), []).extend(group.rewards)
    rewards[metric.REWARD] = [reward for group in step.groups for reward in group.rewards]
    for name, row in rewards.items():
        seen = step.batch.values.get(name)
        if seen is None or not row or close(seen, fmean(row), SAME, SAME * max(map(abs, row))):
            continue
        text = (
            f"the logged metric {name} is {seen:.6g}, and the mean reward of the step's {len(row)} rollouts is "
            f"{fmean(row):.6g}: others are counted, or some are not"
        )
        yield Violation("reward-metric", text, {"metric": name, "seen": seen, "expected": fmean(row)})
        return


BATCH: tuple[Callable[[BatchAdvantages], Iterator[Violation]], ...] = (
    rewards_kept,
    rewards_logged,
    advantages,
    samples_once,
)
"""Identities of a batch with its advantages."""
