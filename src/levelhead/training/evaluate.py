"""Scoring on held-out items: the same items every time, in the same order."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from levelhead.recipe.training import Evaluation
from levelhead.records import Group, Prompt, Rollout
from levelhead.rollout.draws import derive
from levelhead.tasks.base import Task
from levelhead.training.collect import Collector


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Held-out result of one task.

    Attributes:
        score: Mean reward.
        se: Its standard error.
        validity: Share of rollouts that parsed.
        length: Mean completion tokens of a rollout.
        n: Items.
        metrics: The task's own numbers.
        groups: The rollouts, one a group.
    """

    score: float
    se: float
    validity: float
    length: float
    n: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    groups: Sequence[Group] = ()

    def to_json(self) -> dict[str, object]:
        """Dict for ``summary.json``."""
        return {
            "score": self.score,
            "se": self.se,
            "validity": self.validity,
            "length": self.length,
            "n": self.n,
            "metrics": dict(self.metrics),
        }


def evaluate(
    tasks: Mapping[str, Task], collector: Collector, recipe: Evaluation, seed: int, items: int
) -> dict[str, TaskResult]:
    """Score the policy on the first ``items`` held-out items of each task, in the order that the seed gives."""
    results: dict[str, TaskResult] = {}
    for name, task in tasks.items():
        prompts = list(itertools.islice(task.prompts("eval", derive(seed, "eval", name)), items))
        groups: list[Group] = []
        for start in range(0, len(prompts), recipe.batch_size):
            chunk = prompts[start : start + recipe.batch_size]
            groups += collector.collect(chunk, 1, recipe.sampling, derive(seed, "eval-draws", name)).groups
        results[name] = _result(task, [group for group in groups if group.rollouts])
    return results


def _result(task: Task, groups: Sequence[Group]) -> TaskResult:
    pairs: list[tuple[Prompt, Rollout]] = [(group.prompt, group.rollouts[0]) for group in groups]
    if not pairs:
        return TaskResult(0.0, 0.0, 0.0, 0.0, 0)
    scores = [rollout.reward for _, rollout in pairs]
    return TaskResult(
        statistics.fmean(scores),
        statistics.stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else 0.0,
        statistics.fmean(r.score is not None and r.score.valid for _, r in pairs),
        statistics.fmean(r.length for _, r in pairs),
        len(pairs),
        dict(task.summarize(pairs)),
        groups,
    )
