"""Which groups of a step are trained on, and the metrics of their sampling."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from levelhead import metrics as metric
from levelhead.recipe.sampling import Sampling
from levelhead.records import Group
from levelhead.tasks.metering import error_metrics, use_metrics
from levelhead.training.collect import Collector
from levelhead.training.collected import Collected
from levelhead.training.curriculum import has_contrast
from levelhead.training.repeats import repeat_metrics


def fill(result: Collected, drawn: Sequence[Group], wanted: int, rounds: int) -> dict[str, float]:
    """Leave in a result the groups to train on, those with contrast first; returns the metrics of redrawing.

    Args:
        result: What was sampled.
        drawn: All groups, redraws included.
        wanted: Groups of a batch.
        rounds: How often it was sampled again.
    """
    live = [group for group in drawn if has_contrast(group)]
    flat = [group for group in drawn if not has_contrast(group)]
    result.groups = [*live, *flat][:wanted]
    return {
        metric.REDRAW_ROUNDS: float(rounds),
        metric.REDRAWN_GROUPS: float(len(drawn) - wanted),
        metric.REDRAW_CONTRAST: len(live) / len(drawn),
        metric.REDRAW_REWARD: _reward(drawn),
    }


def describe(
    result: Collected, drawn: Sequence[Group], values: Mapping[str, float], collector: Collector, controls: Sampling
) -> None:
    """Leave in a result the metrics of its sampling.

    Args:
        result: What was sampled, and what it cost.
        drawn: All groups, redraws included: those without contrast, which give way to others, have like answers.
        values: Metrics that are there already.
        collector: Who sampled.
        controls: With which it was sampled.
    """
    answers = collector.answers(drawn) | repeat_metrics(drawn)
    counts = {metric.NUM_ROLLOUTS: float(result.episodes), metric.DROPPED_ROLLOUTS: float(result.dropped)}
    judged, result.timings = use_metrics(result.judges)
    result.timings |= collector.use()
    result.values = {**values, **answers, **counts, **judged, **error_metrics(result.tallies)}
    result.values[metric.TEMPERATURE] = result.temperature = controls.temperature


def _reward(groups: Sequence[Group]) -> float:
    """Mean reward of all that was sampled; the batch's own is that of the groups that were kept."""
    rewards = [rollout.reward for group in groups for rollout in group.rollouts]
    return statistics.fmean(rewards) if rewards else math.nan
