"""What the reward says and what it hides: hacking, failing judges, standing still, unequal tasks."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Suspicion, View, ends, index_at, shift_at
from levelhead.diagnosis.history import Series
from levelhead.diagnosis.signals import SIGNALS
from levelhead.diagnosis.trend import Trend, proven_flat, trend
from levelhead.metrics import held_out

_PERPLEXITY = re.compile(r"perplexity|(?:^|[/_ -])ppl(?:$|[/_ -])", re.IGNORECASE)

ABOVE = 2.0
"""Standard errors by which a policy has to be above the best constant answer, as for the verdict of a run."""
RUN_LENGTH = (20.0, 40.0)
"""Steps before which a run may still be below it, and from which on it may not."""
NEARLY_PERFECT = (0.85, 0.95)
"""Held-out scores, of at most 1, at which there is nothing left to be above."""


class RewardHacking:
    """The reward rises while what it stands for falls."""

    codes = ("reward-hacking",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Compare the total and the form rewards with outcome, held-out score, validity and length."""
        case = Suspicion("reward-hacking")
        gain, winner = self._gain(view)
        for series in [*view.parts("outcome"), view.series(metric.VALIDITY)]:
            if len(series) >= 3 and series.name != (winner.name if winner else ""):
                self._loser(case, series, gain, winner)
        self._held_out(case, view)
        self._fluency(case, view)
        self._jump(case, view)
        if case.clues:
            yield case

    def _gain(self, view: View) -> tuple[float, Series | None]:
        """The surest rise among the total reward and the form rewards."""
        best: tuple[float, Series | None] = (0.0, None)
        for series in [view.series(metric.REWARD), *view.parts("form"), *view.parts("other")]:
            if len(series) >= 3:
                strength = _one_way(series, up=True)
                if strength > best[0]:
                    best = (strength, series)
        return best

    def _loser(self, case: Suspicion, series: Series, gain: float, winner: Series | None) -> None:
        early, late = _means(series)
        if early < 0.03 or winner is None or gain < 0.2:
            return
        down = _one_way(series, up=False) * stats.ramp((early - late) / max(abs(early), 1e-9), 0.15, 0.5)
        weight = 5.5 * down * gain
        if weight > 1:
            case.add(
                weight, "part-falls-while-other-rises", falls=series.name, rises=winner.name, early=early, late=late
            )
            case.first_step = case.first_step if case.first_step is not None else _leaves(series, early, late)
            case.show(series, series.steps[0], series.steps[-1]).show(winner, winner.steps[0], winner.steps[-1])

    def _held_out(self, case: Suspicion, view: View) -> None:
        reward = view.series(metric.REWARD, view.course.source)
        for name, held in (view.course.held_out or view.course.task_scores).items():
            down = max(held.fall, held.crash)
            # A reward that goes down too, once all is lost, had still risen when the score broke.
            n = sum(step <= held.drop_step for step in reward.steps)
            rise = max(view.course.reward.rise, trend(Series(reward.name, reward.steps[:n], reward.values[:n])).rise)
            weight = 5.0 * rise * down
            if weight > 1:
                case.add(weight, "held-out-falls-while-reward-rises", metric=name, early=held.early, late=held.late)
                case.first_step = case.first_step if case.first_step is not None else held.drop_step
                case.show(view.history.series(name), held.peak_step, held.drop_step)
                return

    def _fluency(self, case: Suspicion, view: View) -> None:
        """The text itself gets worse: its perplexity under a model that is not trained multiplies."""
        gain = max(view.course.reward.rise, view.course.near_top, view.course.learned)
        for series in view.history.matching(held_out.NUMBER.prefix):
            if not _PERPLEXITY.search(series.name) or len(series) < 3 or min(series.values) <= 0:
                continue
            early, late = ends(series)
            weight = 4.2 * gain * stats.ramp(stats.ln(late / early), stats.ln(1.3), stats.ln(2.2))
            if weight > 1:
                case.add(weight, "perplexity-rises-with-reward", metric=series.name, early=early, late=late)
                case.first_step = _leaves(series, early, late)
                case.show(series, series.steps[0], series.steps[-1])
                return

    def _jump(self, case: Suspicion, view: View) -> None:
        """A leap to the maximum within a few rows while answers shrink to nothing is a trick, not an insight."""
        reward, length = view.series(metric.REWARD), view.series(metric.MEAN_LENGTH)
        top = view.course.top
        if len(reward) < 8 or len(length) < 8 or not top:
            return
        at, _ = stats.change_point(reward.values)
        moved = shift_at(length, reward.steps[at])
        before, after = stats.median(reward.values[:at] or [0.0]), stats.median(reward.values[at:])
        if moved and before < 0.5 * top and after > 0.95 * top and moved[1] < moved[0] / 3:
            case.add(3.5, "leap-with-short-answers", before=moved[0], after=moved[1])
            case.first_step = reward.steps[at]
            case.show(reward, reward.steps[at]).show(length, length.steps[0], reward.steps[at])


class NoImprovement:
    """Many steps, and the reward stands where it stood, or lower."""

    codes = ("no-improvement",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Weigh length and flatness of the record against room to improve."""
        course = view.course
        reward = course.reward
        series = view.series(metric.REWARD, course.source)
        if reward.n < 4:
            return
        case = Suspicion("no-improvement", first_step=series.steps[0])
        steps = max(reward.n * series.stride, series.steps[-1] - series.steps[0])
        # A demonstration of two dozen steps comes to its end as well.
        finished = _schedule_done(view.series(metric.LEARNING_RATE)) * stats.ramp(steps, 20, 36)
        reached = max(stats.ramp(steps, 40, 160), finished)
        held_out = max((s for name in course.held_out if len(s := view.series(name)) >= 5), key=len, default=None)
        proven = max(proven_flat(series, course.top), proven_flat(held_out, 1.0) if held_out else 0.0)
        flat = (1 - reward.rise) * (1 - course.learned) * (0.4 + 0.6 * proven)
        if course.top:
            # The higher a reward stands from the start, the less of a gain there is to be seen.
            flat *= stats.ramp(reward.early / course.top, 0.95, 0.5)
        case.add(
            (0.8 * (reward.n >= 20) + 2.2 * reached + 0.6 * stats.ramp(steps, 160, 600)) * flat,
            "reward-flat-for",
            rows=reward.n,
            early=reward.early,
            late=reward.late,
        )
        case.add(0.6 * finished * flat, "schedule-done")
        if held_out:
            early, late = ends(held_out)
            weight = 1.4 * max(reached, stats.ramp(len(held_out), 4, 10)) * flat * proven_flat(held_out, 1.0)
            case.add(weight, "held-out-flat", metric=held_out.name, rows=len(held_out), early=early, late=late)
        if reward.fall > 0.3:
            lost = abs(reward.early - reward.late) / max(abs(reward.early), reward.scale, 1e-9)
            case.add(2.5 * reward.fall * stats.ramp(lost, 0.15, 0.6), "reward-falls", value=reward.late)
        kl, rate = view.series(metric.KL), view.series(metric.LEARNING_RATE)
        if len(kl) >= 20 and flat > 0.5 and max(kl.values) < 2e-4:
            case.add(0.8, "policy-has-not-moved", kl=max(kl.values))
        if len(rate) and flat > 0.5 and 0 < max(rate.values) <= 1e-7:
            case.add(0.8, "learning-rate-tiny", rate=max(rate.values))
        case.add(-2.0 * course.near_top, "reward-near-top", value=reward.late)
        case.add(-3.5 * course.learned, "reward-rises")
        if not view.from_start:
            case.add(-2.0 + 1.2 * stats.ramp(steps, 100, 400), "starts-later", step=view.history.first_step)
        self._chosen(case, view)
        if course.held_out and course.learned > 0.3:
            case.add(-2.0, "held-out-rises")
        if reward.fall > 0.5:
            case.first_step = reward.drop_step
        yield case.show(series, series.steps[0], series.steps[-1])

    def _chosen(self, case: Suspicion, view: View) -> None:
        """A curriculum that serves what is half solved holds the reward there, however much the policy learns."""
        arms = [series for series in view.history.matching(metric.CURRICULUM_SUCCESS.prefix) if len(series) >= 6]
        if arms:
            rise = stats.mean([trend(series).rise for series in arms])
            case.add(-1.5 - 2.0 * rise, "prompts-are-chosen", early=_level(arms, 0), late=_level(arms, -1))


class NoBetterThanConstant:
    """Held-out scores that the best constant answer gets as well, at the end of a run of some length."""

    codes = ("no-improvement",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Compare each task's last evaluation with what the best constant answer scored on its items."""
        for gap in view.history.matching(held_out.NUMBER.prefix):
            task, _, measure = gap.name.removeprefix(held_out.NUMBER.prefix).rpartition("/")
            names = (held_out.NUMBER.of(task, name) for name in (held_out.SE, held_out.SCORE))
            errors, score = map(view.history.series, names)
            if measure != held_out.OVER_CONSTANT or not (len(gap) and len(errors) and len(score)) or gap.steps[-1] <= 0:
                continue
            above = gap.values[-1] / max(errors.values[-1], 1e-9)
            case = Suspicion("no-improvement")
            case.add(
                4.0 * stats.ramp(above, ABOVE, 0.5 * ABOVE) * stats.ramp(gap.steps[-1], *RUN_LENGTH),
                "not-above-constant", task=task, gap=gap.values[-1], error=errors.values[-1],
            )  # fmt: skip
            near_top = stats.ramp(score.values[-1], *NEARLY_PERFECT)
            case.add(-4.0 * near_top, "reward-near-top", value=score.values[-1])
            if case.clues:
                yield case.show(gap, gap.steps[0], gap.steps[-1])


class JudgeFailure:
    """A judge gives no grades, or the reward goes blank while the policy has not changed."""

    codes = ("judge-failure",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Look for reward errors, missing verdicts, and stretches of constant reward amid unchanged answers."""
        case = Suspicion("judge-failure")
        errors = view.series("reward/errors")
        if len(errors):
            worst = max(stats.smooth(errors.values, 3))
            case.add(4.5 * stats.ramp(worst, 0.05, 0.4), "judge-errors", share=worst)
            case.first_step = next((s for s, v in zip(errors.steps, errors.values, strict=True) if v > 0.05), None)
            case.show(errors, *((case.first_step,) if case.first_step is not None else ()))
        reward = view.history.series(metric.REWARD)
        if reward.bad.count and len(reward):
            case.add(2.5, "reward-not-finite", rows=reward.bad.count)
        self._verdicts(case, view)
        self._blank(case, view, reward)
        if case.clues:
            yield case

    def _verdicts(self, case: Suspicion, view: View) -> None:
        """Steps in which more than half of a judge's verdicts held no grade, by the metrics and by the events."""
        failures, verdicts = view.history.series(metric.JUDGE_FAILURES), view.history.series(metric.JUDGE_VERDICTS)
        asked = dict(zip(verdicts.steps, verdicts.values, strict=True))
        counts = [(step, asked.get(step, 0.0), n) for step, n in zip(failures.steps, failures.values, strict=True)]
        metered = {step for step, _, _ in counts}
        for event in view.events:
            step, evidence = event.get("step"), event.get("evidence")
            if event.get("code") != "judge-failure" or not isinstance(evidence, Mapping) or step in metered:
                continue
            numbers = [evidence.get(name) for name in ("asked", "failed")]
            if isinstance(step, int) and all(isinstance(n, int) for n in numbers):
                counts.append((float(step), float(numbers[0] or 0), float(numbers[1] or 0)))
        bad = sorted((step, n, missing) for step, n, missing in counts if 2 * missing > n)
        if not bad:
            return
        total, missing = sum(n for _, n, _ in bad), sum(n for _, _, n in bad)
        weight = 2.0 + 3.2 * stats.ramp(total, 1, 8)
        case.add(weight, "verdicts-missing", steps=len(bad), asked=total, failed=missing)
        case.first_step = bad[0][0]
        case.show(failures, bad[0][0], bad[-1][0]).show(verdicts, bad[0][0], bad[-1][0])

    def _blank(self, case: Suspicion, view: View, reward: Series) -> None:
        values = reward.values
        if len(values) < 8:
            return
        still = [False] + [abs(b - a) <= 1e-12 for a, b in itertools.pairwise(values)]
        start, length = stats.longest_run(still)
        begin = start - 1
        if length < 2 or begin < 3 or length + 1 >= len(values) - 3:
            return
        if not self._dead_throughout(view, reward.steps[begin], reward.steps[start + length - 1]):
            return
        others = values[:begin] + values[start + length :]
        if len(set(others)) < 0.5 * len(others):
            # The reward repeats itself in ordinary rows too: constant stretches mean nothing here.
            return
        if abs(stats.median(others) - values[start]) < max(0.02 * (max(values) - min(values)), stats.spread(others)):
            # Nothing was lost: the run scored this low anyway.
            return
        low = values[start] <= stats.quantile(others, 0.1)
        recovers = start + length < len(values) - 1
        steady = self._steady(view, reward.steps[begin], reward.steps[min(start + length, len(values) - 1)])
        # What has not come back may have other causes, unless the policy is plainly the same.
        weight = (
            (3.0 if recovers else 2.4 if steady and low else 1.5) * stats.ramp(length + 1, 2, 5) * (1.5 if low else 0.8)
        )
        case.add(weight if steady else 0.3 * weight, "reward-blank", value=values[start], rows=length + 1)
        case.first_step = reward.steps[begin]
        case.show(
            reward, reward.steps[begin - 1], reward.steps[begin], reward.steps[min(start + length, len(values) - 1)]
        )

    def _dead_throughout(self, view: View, begin: float, end: float) -> bool:
        """Whether every group was without contrast in the stretch: a rounded mean repeats itself by chance."""
        inside = [v for s, v in zip(view.dead.steps, view.dead.values, strict=True) if begin <= s <= end]
        return bool(inside) and min(inside) >= 0.99

    def _steady(self, view: View, begin: float, end: float) -> bool:
        """Whether lengths and entropy stay in their usual range during the stretch."""
        for name in (metric.MEAN_LENGTH, metric.ENTROPY):
            series = view.series(name)
            a, b = index_at(series, begin), index_at(series, end)
            if a is None or b is None or a < 3:
                continue
            usual, inside = series.values[:a], series.values[a : b + 1]
            if abs(stats.median(inside) - stats.median(usual)) > 4 * max(
                stats.spread(usual), 0.05 * abs(stats.median(usual))
            ):
                return False
        return True


class TaskBalance:
    """Several objectives in one run: one starves, or their gradients pull against each other."""

    codes = ("task-imbalance", "gradient-conflict")

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Compare the tasks' own rewards, and the cosine of their gradients where it is logged."""
        tasks = [
            s for s in view.history.matching(metric.REWARD_BY_TASK.prefix) if s.name not in SIGNALS and len(s) >= 8
        ]
        if len(tasks) >= 2:
            yield self._imbalance(tasks)
        cosines = [
            s
            for s in [*view.history.matching("gradients/cosine"), *view.history.matching(metric.MERGE_COSINE.prefix)]
            if len(s) >= 4
        ]
        for cosine in cosines[:1]:
            late = stats.median(cosine.values[-stats.edge(len(cosine), 0.4) :])
            case = Suspicion(
                "gradient-conflict",
                first_step=next((s for s, v in zip(cosine.steps, cosine.values, strict=True) if v < 0), None),
            )
            case.add(4.0 * stats.ramp(-late, 0.05, 0.5), "gradients-oppose", cosine=late)
            case.add(-2.0 * view.course.learned, "reward-rises")
            yield case.show(cosine, cosine.steps[0], cosine.steps[-1])

    def _imbalance(self, tasks: list[Series]) -> Suspicion:
        trends: list[tuple[Series, Trend]] = [(s, trend(s)) for s in tasks]
        worst, fallen = max(trends, key=lambda pair: max(pair[1].fall, pair[1].crash))
        best, risen = max(trends, key=lambda pair: pair[1].rise)
        case = Suspicion("task-imbalance", first_step=fallen.drop_step)
        loss = max(fallen.fall, fallen.crash)
        if worst is not best:
            case.add(
                4.8 * loss * max(risen.rise, 0.3), "task-falls-while-other-rises", falls=worst.name, rises=best.name
            )
        case.show(worst, worst.steps[0], worst.steps[-1])
        return case.show(best, best.steps[0], best.steps[-1])


def _schedule_done(rate: Series) -> float:
    """0 to 1: how surely a decaying learning rate has come to its end, and the run with it."""
    if len(rate) < 4 or max(rate.values) <= 0:
        return 0.0
    falling = rate.values[-1] <= min(rate.values[len(rate) // 2 :])
    return stats.ramp(rate.values[-1] / max(rate.values), 0.1, 0.03) if falling else 0.0


def _level(series: Sequence[Series], at: int) -> float:
    return stats.mean([ends(one)[at] for one in series])


def _means(series: Series) -> tuple[float, float]:
    return ends(series, 0.2)


def _one_way(series: Series, up: bool) -> float:
    """0 to 1: how surely the series goes one way; three rows that all do are worth 0.8."""
    sign = 1 if up else -1
    if len(series) < 6:
        moves = [sign * (b - a) for a, b in zip(series.values, series.values[1:], strict=False)]
        total = sign * (series.values[-1] - series.values[0])
        backward = -sum(m for m in moves if m < 0)
        size = abs(total) / max(abs(series.values[0]), 1e-9)
        if total <= 0:
            return 0.0
        return stats.ramp(1 - backward / max(total, 1e-12), 0.3, 0.9) * stats.ramp(size, 0.1, 0.4) * 0.8
    judged = trend(series)
    z = stats.kendall_z(series.values) * sign
    return max(judged.rise if up else judged.fall, 0.0) * stats.ramp(z, 0.5, 3)


def _leaves(series: Series, early: float, late: float) -> float:
    """First step at which the series has covered a third of its way from ``early`` to ``late``."""
    level = early + (late - early) / 3
    for step, value in zip(series.steps, series.values, strict=True):
        if (value - level) * math.copysign(1, late - early) >= 0:
            return step
    return series.steps[-1]
