"""Bookkeeping: which checkpoint is the best, and what a metric is a metric of."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

import levelhead.training.batch
import levelhead.training.front
from faults.unlisted.registry import SWIFT, UNSLOTH, swapped, unlisted
from levelhead.training.evaluator import Evaluator

OFTEN = ("eval.every=4", "eval.items=4")


@unlisted(
    "best-is-the-lowest",
    "the best checkpoint is the one with the lowest score: a loss is assumed where a reward is measured",
    SWIFT + "issues/8030",
    kind="bookkeeping",
    named_by=["best checkpoint", "best score", "best evaluation", "checkpoints/best"],
    settings=[*OFTEN, "checkpoint.best=true"],
)
def _best_is_the_lowest() -> Iterator[None]:
    with swapped(levelhead.training.front, "selection", lambda real: lambda results: -real(results)):
        yield


@unlisted(
    "evaluations-in-the-training-reward",
    "the mode of the model is not put back: rewards of an evaluation are averaged into the next training step's",
    UNSLOTH + "pull/3754",
    kind="bookkeeping",
    named_by=["reward mean", "metric reward", "eval reward", "reward log"],
    settings=OFTEN,
)
def _evaluations_in_the_training_reward() -> Iterator[None]:
    pending: list[float] = []

    def scored(real: Any) -> Any:
        def score(self: Evaluator, items: int) -> Any:
            results = real(self, items)
            pending.extend(r.reward for result in results.values() for g in result.groups for r in g.rollouts)
            return results

        return score

    def measured(real: Any) -> Any:
        def metrics(groups: Any, group_advantages: Any) -> Any:
            values = real(groups, group_advantages)
            if pending and "reward" in values:
                values["reward"] = fmean([*(r.reward for g in groups for r in g.rollouts), *pending])
                pending.clear()
            return values

        return metrics

    with swapped(Evaluator, "score", scored), swapped(levelhead.training.batch, "_metrics", measured):
        yield
