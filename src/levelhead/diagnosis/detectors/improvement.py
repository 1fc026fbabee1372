"""Runs that are no better at their end: a flat reward, or scores that a constant answer gets as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Candidate, Tuned, View
from levelhead.diagnosis.history import History, Series
from levelhead.diagnosis.trend import ends, proven_flat, trend
from levelhead.diagnosis.verdict import compare
from levelhead.metrics import held_out


class NoImprovement(Tuned):
    """Many steps, and the reward stands where it stood, or lower."""

    codes = ("no-improvement",)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Weigh length and flatness of the record against room to improve."""
        reward_trend = view.reward_trend
        reward = reward_trend.reward
        series = view.series(metric.REWARD, reward_trend.source)
        if reward.n < self.ROWS:
            return
        case = Candidate("no-improvement", first_step=series.steps[0])
        steps = max(reward.n * series.stride, series.steps[-1] - series.steps[0])
        # A demonstration of two dozen steps comes to its end as well.
        finished = self._schedule_done(view.series(metric.LEARNING_RATE)) * stats.ramp(steps, *self.FINISHED_RANGE)
        reached = max(stats.ramp(steps, *self.REACHED_RANGE), finished)
        held_out = max(
            (s for name in reward_trend.held_out if len(s := view.series(name)) >= self.EVALUATIONS),
            key=len,
            default=None,
        )
        proven = max(proven_flat(series, reward_trend.top), proven_flat(held_out, 1.0) if held_out else 0.0)
        flat = (1 - reward.rise) * (1 - reward_trend.learned) * (self.FLAT_ANYWAY + self.FLAT_PROVEN * proven)
        if reward_trend.top:
            # The higher a reward stands from the start, the less of a gain there is to be seen.
            flat *= stats.ramp(reward.early / reward_trend.top, *self.ROOM_RANGE)
        case.add(
            (
                self.FLAT_ROWS_WEIGHT * (reward.n >= self.FLAT_ROWS)
                + self.FLAT_REACHED_WEIGHT * reached
                + self.FLAT_LONG_WEIGHT * stats.ramp(steps, *self.LONG_RANGE)
            )
            * flat,
            "reward-flat-for",
            rows=reward.n,
            early=reward.early,
            late=reward.late,
        )
        case.add(self.SCHEDULE_DONE_WEIGHT * finished * flat, "schedule-done")
        if held_out:
            self._held_out_flat(case, held_out, reached, flat)
        if reward.fall > self.FALLS:
            lost = abs(reward.early - reward.late) / max(abs(reward.early), reward.scale, 1e-9)
            self.argue(case, "reward-falls", lost, reward.fall, value=reward.late)
        self._small_steps(case, view, flat)
        case.add(self.REWARD_NEAR_TOP_WEIGHT * reward_trend.near_top, "reward-near-top", value=reward.late)
        case.add(self.REWARD_RISES_WEIGHT * reward_trend.learned, "reward-rises")
        if not view.from_start:
            case.add(
                self.STARTS_LATER_WEIGHT + self.STARTS_LATER_LONG_WEIGHT * stats.ramp(steps, *self.STARTS_LATER_RANGE),
                "starts-later",
                step=view.history.first_step,
            )
        self._curriculum(case, view)
        if reward_trend.held_out and reward_trend.learned > self.HELD_OUT_RISES:
            case.add(self.HELD_OUT_RISES_WEIGHT, "held-out-rises")
        if reward.fall > self.FALLS_PLAINLY:
            case.first_step = reward.drop_step
        yield case.show(series, series.steps[0], series.steps[-1])

    def _small_steps(self, case: Candidate, view: View, flat: float) -> None:
        """Updates too small to have moved the policy explain a flat reward."""
        kl, rate = view.series(metric.KL), view.series(metric.LEARNING_RATE)
        if len(kl) >= self.ROWS_OF_KL and flat > self.FLAT and max(kl.values) < self.UNMOVED_KL:
            case.add(self.POLICY_HAS_NOT_MOVED_WEIGHT, "policy-has-not-moved", kl=max(kl.values))
        if len(rate) and flat > self.FLAT and 0 < max(rate.values) <= self.TINY_RATE:
            case.add(self.LEARNING_RATE_TINY_WEIGHT, "learning-rate-tiny", rate=max(rate.values))

    def _held_out_flat(self, case: Candidate, series: Series, reached: float, flat: float) -> None:
        """Held-out scores that have not moved either."""
        early, late = ends(series)
        weight = (
            self.HELD_OUT_FLAT_WEIGHT
            * max(reached, stats.ramp(len(series), *self.HELD_OUT_FLAT_RANGE))
            * flat
            * proven_flat(series, 1.0)
        )
        case.add(weight, "held-out-flat", metric=series.name, rows=len(series), early=early, late=late)

    def _curriculum(self, case: Candidate, view: View) -> None:
        """A curriculum that serves what is half solved holds the reward there, however much the policy learns."""
        arms = [
            series
            for series in view.history.matching(metric.CURRICULUM_SUCCESS.prefix)
            if len(series) >= self.ROWS_OF_CURRICULUM
        ]
        if arms:
            rise = stats.mean([trend(series).rise for series in arms])
            case.add(
                self.PROMPTS_ARE_CHOSEN_WEIGHT - self.CURRICULUM_RISES_WEIGHT * rise,
                "prompts-are-chosen",
                early=_level(arms, 0),
                late=_level(arms, -1),
            )

    def _schedule_done(self, rate: Series) -> float:
        """0 to 1: how surely a decaying learning rate has come to its end, and the run with it."""
        if len(rate) < self.SCHEDULE_ROWS or max(rate.values) <= 0:
            return 0.0
        falling = rate.values[-1] <= min(rate.values[len(rate) // 2 :])
        return stats.ramp(rate.values[-1] / max(rate.values), *self.SCHEDULE_RANGE) if falling else 0.0


class NoBetterThanConstant(Tuned):
    """Held-out scores that the best constant answer gets as well, at the end of a run of some length."""

    codes = ("no-improvement",)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Compare each task's last evaluation with what the best constant answer scored on its items."""
        for task, gap, error, score in gaps_over_constant(view.history):
            if over_constant(gap, error) != "not above":
                continue
            case = Candidate("no-improvement")
            self.argue(case, "not-above-constant", gap.steps[-1], task=task, gap=gap.values[-1], error=error)
            self.argue(case, "reward-near-top", score, value=score)
            if case.evidence:
                yield case.show(gap, gap.steps[0], gap.steps[-1])


def gaps_over_constant(history: History) -> Iterator[tuple[str, Series, float, float]]:
    """Yield each task's curve above the best constant answer, with the last standard error and score.

    Only tasks that have been evaluated since training began.
    """
    for gap in history.matching(held_out.NUMBER.prefix):
        task, _, measure = gap.name.removeprefix(held_out.NUMBER.prefix).rpartition("/")
        errors, scores = (history.series(held_out.NUMBER.of(task, name)) for name in (held_out.SE, held_out.SCORE))
        if measure == held_out.OVER_CONSTANT and len(gap) and len(errors) and len(scores) and gap.steps[-1] > 0:
            yield task, gap, errors.values[-1], scores.values[-1]


def over_constant(gap: Series, error: float) -> Literal["above", "not above", "undecided"]:
    """Return whether a policy ends above the best constant answer, as the verdict of a run has it."""
    side = compare(gap.values[-1], error, None)
    if side == "above":
        return "above"
    return "undecided" if side == "undecided" and gap.values[-1] > 0 else "not above"


def _level(series: Sequence[Series], at: int) -> float:
    return stats.mean([ends(one)[at] for one in series])
