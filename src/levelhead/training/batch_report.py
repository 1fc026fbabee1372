"""Which groups of a step are trained on, and the metrics of their sampling: repeats and their chance among them.

Two equal draws of one completion are a coincidence or a bug.  The sampler says how likely each completion was, so
chance is known to the digit and needs no threshold.  Evidence is the logarithm of an e-value: a number of 0 or more
whose mean is at most 1 where every rollout is a draw of its own, so that it passes 1 / a with probability a at most
(Markov; Grunwald, de Heide and Koolen 2024, "Safe testing").
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from levelhead import metrics as metric
from levelhead.recipe.sampling import Sampling
from levelhead.recipe.training import Grpo
from levelhead.records import Group, Rollout, Turn
from levelhead.tasks.metering import error_metrics, use_metrics
from levelhead.training.collect import Collector
from levelhead.training.collected import Collected
from levelhead.training.curriculum import has_contrast


def choose_trained_groups(
    result: Collected, drawn: Sequence[Group], wanted: int, rounds: int, config: Grpo
) -> dict[str, float]:
    """Leave in a result the groups to train on, those with contrast first; returns the metrics of redrawing.

    Args:
        result: What was sampled.
        drawn: All groups, redraws included.
        wanted: Groups of a batch.
        rounds: How often it was sampled again.
        config: Whose estimator tells what a contrast is.
    """
    contrasted = [group for group in drawn if has_contrast(group, config)]
    flat = [group for group in drawn if not has_contrast(group, config)]
    result.groups = [*contrasted, *flat][:wanted]
    return {
        metric.REDRAW_ROUNDS: float(rounds),
        metric.REDRAWN_GROUPS: float(len(drawn) - wanted),
        metric.REDRAW_CONTRAST: len(contrasted) / len(drawn),
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


_MORE = tuple(2.0**k for k in range(1, 61))
_FEWER = (0.0, 0.25, 0.5)


def mean_of_logs(logs: Sequence[float]) -> float:
    """Return the logarithm of the mean of numbers that are given by their logarithms."""
    most = max(logs)
    if math.isinf(most):
        return most
    return most + math.log(math.fsum(math.exp(value - most) for value in logs) / len(logs))


def count_log_e(seen: int, expected: float) -> float:
    """Return the log e-value of a count that is too high or too low.

    The count is a sum of events, each of which has had, given those before it, a known probability; their sum is
    ``expected``.  For every t, t^seen exp(-(t - 1) expected) is an e-value, because E[t^I] = 1 + (t - 1) q is at most
    exp((t - 1) q); the mean over several t is one too.

    Args:
        seen: Events that have happened.
        expected: Sum of their probabilities.
    """
    more = [seen * math.log(t) - (t - 1) * expected for t in _MORE]
    fewer = [(seen * math.log(t) if t else 0.0 if seen == 0 else -math.inf) + (1 - t) * expected for t in _FEWER]
    return mean_of_logs([mean_of_logs(more), mean_of_logs(fewer)])


def log_probability(turn: Turn) -> float:
    """Return the log-probability of a completion in the draw that made it: the sum over its tokens."""
    return min(0.0, math.fsum(turn.behaviour_logprobs))


def repeats(turns: Sequence[Turn]) -> tuple[int, float]:
    """Return how many completions of one context repeat an earlier one, and how many chance alone would make.

    A draw repeats one of those before it with the sum of their probabilities: the recorded ones are exact.
    """
    seen: dict[tuple[int, ...], float] = {}
    count, expected = 0, 0.0
    for turn in turns:
        expected += min(1.0, math.fsum(seen.values()))
        count += turn.completion_ids in seen
        seen.setdefault(turn.completion_ids, math.exp(log_probability(turn)))
    return count, expected


def in_groups(groups: Sequence[Group]) -> tuple[int, float, int]:
    """Return repeats within groups, what chance makes of them, and the rollouts that had one before them."""
    count, expected, draws = 0, 0.0, 0
    for group in groups:
        contexts: dict[tuple[int, ...], list[Turn]] = {}
        for rollout in group.rollouts:
            contexts.setdefault(rollout.turns[0].context_ids, []).append(rollout.turns[0])
        for turns in contexts.values():
            counts = repeats(turns)
            count, expected, draws = count + counts[0], expected + counts[1], draws + len(turns) - 1
    return count, expected, draws


def across(before: Sequence[Rollout], after: Sequence[Rollout]) -> tuple[int, float]:
    """Return how many rollouts equal that of the same index in another draw by the same weights, and the chance."""
    pairs = [(a.turns[0], b.turns[0]) for a, b in zip(before, after, strict=False)]
    pairs = [(a, b) for a, b in pairs if a.context_ids == b.context_ids]
    equal = sum(a.completion_ids == b.completion_ids for a, b in pairs)
    return equal, math.fsum(math.exp(log_probability(a)) for a, _ in pairs)


def repeat_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return how often the rollouts of a step repeat each other, and the evidence, in nats, that it is no chance.

    Those of a group are held against each other, and those of a prompt that was sampled more than once against those of
    the same index the time before.

    Args:
        groups: All that was sampled for a step, by the same weights.
    """
    groups = [group for group in groups if group.rollouts and all(rollout.turns for rollout in group.rollouts)]
    count, expected, draws = in_groups(groups)
    if not draws:
        return {}
    again, chance = 0, 0.0
    last: dict[tuple[str, str], Group] = {}
    for group in groups:
        key = group.prompt.task, group.prompt.id
        if key in last:
            shares = across(last[key].rollouts, group.rollouts)
            again, chance = again + shares[0], chance + shares[1]
        last[key] = group
    evidence = mean_of_logs([count_log_e(count, expected), count_log_e(again, chance)])
    return {
        metric.REPEATS: count / draws,
        metric.REPEATS_EXPECTED: expected / draws,
        metric.REPEATS_EVIDENCE: evidence,
    }
