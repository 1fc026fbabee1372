"""Rewards that were not given: judges that fail, rewards that go blank, reward functions that raise."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Candidate, Tuned, View
from levelhead.diagnosis.history import Series
from levelhead.diagnosis.trend import index_at
from levelhead.metrics import judging


class JudgeFailure(Tuned):
    """A judge gives no grades, or the reward goes blank while the policy has not changed."""

    codes = ("judge-failure",)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Look for reward errors, missing verdicts, and stretches of constant reward amid unchanged answers."""
        case = Candidate("judge-failure")
        errors = view.series("reward/errors")
        if len(errors):
            worst = max(stats.smooth(errors.values, self.ERROR_ROWS))
            self.argue(case, "judge-errors", worst, share=worst)
            case.first_step = next(
                (s for s, v in zip(errors.steps, errors.values, strict=True) if v > self.ERROR_SHARE), None
            )
            case.show(errors, case.first_step)
        reward = view.history.series(metric.REWARD)
        if reward.bad.count and len(reward):
            case.add(self.REWARD_NOT_FINITE_WEIGHT, "reward-not-finite", rows=reward.bad.count)
        self._verdicts(case, view)
        self._blank(case, view, reward)
        if case.evidence:
            yield case

    def _verdicts(self, case: Candidate, view: View) -> None:
        """Steps in which more than half of a judge's verdicts held no grade, by the metrics and by the events."""
        failures, verdicts = view.history.series(judging.FAILURES), view.history.series(judging.VERDICTS)
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
        weight = 2.0 + self.VERDICTS_MORE_WEIGHT * stats.ramp(total, *self.VERDICTS_RANGE)
        case.add(weight, "verdicts-missing", steps=len(bad), asked=total, failed=missing)
        case.first_step = bad[0][0]
        case.show(failures, bad[0][0], bad[-1][0]).show(verdicts, bad[0][0], bad[-1][0])

    def _blank(self, case: Candidate, view: View, reward: Series) -> None:
        values = reward.values
        if len(values) < self.ROWS_OF_BLANK:
            return
        still = [False] + [abs(b - a) <= 1e-12 for a, b in itertools.pairwise(values)]
        start, length = stats.longest_run(still)
        begin = start - 1
        if length < 2 or begin < self.ROWS_AROUND or length + 1 >= len(values) - self.ROWS_AROUND:
            return
        if not self._dead_throughout(view, reward.steps[begin], reward.steps[start + length - 1]):
            return
        others = values[:begin] + values[start + length :]
        if len(set(others)) < self.REPEATS * len(others):
            # The reward repeats itself in ordinary rows too: constant stretches mean nothing here.
            return
        if abs(stats.median(others) - values[start]) < max(
            self.NOTHING_LOST * (max(values) - min(values)), stats.spread(others)
        ):
            # Nothing was lost: the run scored this low anyway.
            return
        beside = values[begin - 1 : begin] + values[start + length : start + length + 1]
        if max(abs(value - values[start]) for value in beside) <= self.BESIDE_NOISES * stats.noise(others):
            # It came there and left by its usual steps: all were wrong for a while, and a default is a leap.
            return
        low = values[start] <= stats.quantile(others, self.LOW_QUANTILE)
        recovers = start + length < len(values) - 1
        steady = self._steady(view, reward.steps[begin], reward.steps[min(start + length, len(values) - 1)])
        # What has not come back may have other causes, unless the policy is plainly the same.
        weight = (
            (self.BLANK_RECOVERS if recovers else self.BLANK_STEADY if steady and low else self.BLANK_ELSE)
            * stats.ramp(length + 1, *self.BLANK_RANGE)
            * (self.BLANK_LOW if low else self.BLANK_NOT_LOW)
        )
        case.add(
            weight if steady else self.REWARD_BLANK_WEIGHT * weight,
            "reward-blank",
            value=values[start],
            rows=length + 1,
        )
        case.first_step = reward.steps[begin]
        case.show(
            reward, reward.steps[begin - 1], reward.steps[begin], reward.steps[min(start + length, len(values) - 1)]
        )

    def _dead_throughout(self, view: View, begin: float, end: float) -> bool:
        """Whether every group was without contrast in the stretch: a rounded mean repeats itself by chance."""
        inside = [v for s, v in zip(view.dead.steps, view.dead.values, strict=True) if begin <= s <= end]
        return bool(inside) and min(inside) >= self.ALL_DEAD

    def _steady(self, view: View, begin: float, end: float) -> bool:
        """Whether lengths and entropy stay in their usual range during the stretch."""
        for name in (metric.MEAN_LENGTH, metric.ENTROPY):
            series = view.series(name)
            a, b = index_at(series, begin), index_at(series, end)
            if a is None or b is None or a < self.ROWS_BEFORE:
                continue
            usual, inside = series.values[:a], series.values[a : b + 1]
            if abs(stats.median(inside) - stats.median(usual)) > self.STEADY_SPREADS * max(
                stats.spread(usual), self.STEADY_SHARE * abs(stats.median(usual))
            ):
                return False
        return True


class RewardErrors(Tuned):
    """Reward functions that fail on more than half of a task's answers, which are then dropped."""

    codes = ("reward-errors",)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Look at the share of dropped answers in the metrics, and at events where these have none."""
        worst: dict[float, float] = {}
        for series in view.history.matching(metric.REWARD_ERRORS):
            for step, share in zip(series.steps, series.values, strict=True):
                worst[step] = max(worst.get(step, 0.0), share)
        for event in view.events:
            at, evidence = event.get("step"), event.get("evidence")
            if event.get("code") != "reward-errors" or not isinstance(evidence, Mapping) or not isinstance(at, int):
                continue
            answers, dropped = evidence.get("answers"), evidence.get("dropped")
            if (
                isinstance(answers, int)
                and isinstance(dropped, int)
                and 0 <= dropped <= answers
                and abs(at) < self.STEPS_MOST
            ):
                worst[float(at)] = max(worst.get(float(at), 0.0), dropped / max(answers, 1))
        bad = sorted(step for step, share in worst.items() if share > self.MOST_OF_ANSWERS)
        if not bad:
            return
        case = Candidate("reward-errors", first_step=bad[0])
        case.add(self.ANSWERS_DROPPED_WEIGHT, "answers-dropped", steps=len(bad), share=max(worst.values()))
        yield case.show(view.history.series(metric.REWARD_ERRORS), bad[0], bad[-1])
