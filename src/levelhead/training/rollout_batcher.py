"""The groups of one step: prompts from a stream, their rollouts, and others in place of groups without contrast."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from levelhead import metrics as metric
from levelhead.recipe.sampling import Sampling
from levelhead.recipe.training import Grpo
from levelhead.records import Event, Group, Prompt
from levelhead.rollout.draws import derive
from levelhead.tasks.metering import error_metrics, use_metrics
from levelhead.training.collect import Collected, Collector, rollout_seed
from levelhead.training.curriculum import has_contrast
from levelhead.training.repeats import repeat_metrics
from levelhead.training.stream import Stream


class RolloutBatcher:
    """Fills the batch of a step.

    With ``dynamic_sampling`` (DAPO, Yu et al. 2025, section 3.2) groups without contrast give way to groups of further
    prompts, a bounded number of times; what still has none then is used as it is, so that a batch is never short.

    Args:
        stream: Chooses prompts, and is told how the policy did on each.
        collector: Draws and scores rollouts.
        config: The ``grpo`` section.
        seed: Seed of all sampling.
    """

    def __init__(self, stream: Stream, collector: Collector, config: Grpo, seed: int) -> None:
        self._stream, self._collector, self._config, self._seed = stream, collector, config, seed

    async def draw(self, step: int, controls: Sampling, redraws: int = 0) -> Collected:
        """Return the scored groups of a step, counted from 1, and what they cost, all redraws included.

        ``redraws`` may raise the recipe's bound.
        """
        wanted = self._config.batch_size // self._config.group_size
        values = self._stream.metrics()
        result = await self._collect(step, 0, wanted, controls)
        drawn = list(result.groups)
        if rounds := max(self._config.dynamic_sampling, redraws):
            values |= await self._fill(result, drawn, step, wanted, controls, rounds)
        describe(result, drawn, values, self._collector, controls)
        result.prompts = [group.prompt for group in drawn]
        return result

    def upcoming(self) -> list[Prompt]:
        """The prompts that the next batch is sampled from, before any gives way to others."""
        return self._stream.peek(self._config.batch_size // self._config.group_size)

    def events(self, step: int) -> list[Event]:
        """What happened to the tasks while the batch of a step was sampled."""
        return self._collector.events(step)

    async def _fill(
        self, result: Collected, drawn: list[Group], step: int, wanted: int, controls: Sampling, most: int
    ) -> dict[str, float]:
        """Draw again until every group has contrast or the bound is reached; returns what that took.

        ``drawn`` grows by all groups that are sampled.
        """
        rounds = 0
        live = [group for group in drawn if has_contrast(group)]
        while len(live) < wanted and rounds < most:
            rounds += 1
            more = await self._collect(step, rounds, wanted - len(live), controls)
            drawn += more.groups
            live += [group for group in more.groups if has_contrast(group)]
            result.add_cost(more)
        return fill(result, drawn, wanted, rounds)

    async def _collect(self, step: int, turn: int, n: int, controls: Sampling) -> Collected:
        seed = rollout_seed(self._seed, step)
        prompts = self._stream.take(n)
        self._collector.at_step(step - 1, self._config.steps)
        collected = await self._visits(prompts, controls, derive(seed, "again", turn) if turn else seed)
        self._stream.learn(collected.groups, step)
        return collected

    async def _visits(self, prompts: Sequence[Prompt], controls: Sampling, seed: int) -> Collected:
        """Collect groups; a prompt that stands in a batch more than once has other draws each time."""
        seen: Counter[tuple[str, str]] = Counter()
        visits: dict[int, list[int]] = {}
        for i, prompt in enumerate(prompts):
            visits.setdefault(seen[prompt.task, prompt.id], []).append(i)
            seen[prompt.task, prompt.id] += 1
        k = self._config.group_size
        collected = await self._collector.collect([prompts[i] for i in visits.pop(0, [])], k, controls, seed)
        if not visits:
            return collected
        first = iter(collected.groups)
        again: dict[int, Group] = {}
        for visit, members in visits.items():
            more = await self._collector.collect(
                [prompts[i] for i in members], k, controls, derive(seed, "visit", visit)
            )
            again |= zip(members, more.groups, strict=True)
            collected.add_cost(more)
        collected.groups = [again[i] if i in again else next(first) for i in range(len(prompts))]
        return collected


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
