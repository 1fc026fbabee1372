"""The deadlock in which nothing moves any more: no contrast within groups, no loss, no gradient."""

from __future__ import annotations

from collections.abc import Iterator

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Candidate, Tuned, View, unmoved
from levelhead.diagnosis.history import Series
from levelhead.diagnosis.trend import constant, index_at, shift_at, tail_start

_DEAD = 0.99  # share of dead groups that is all of them
_STILL = 1e-7  # loss or norm that is 0 as trainers print it


class Deadlock(Tuned):
    """No spread, no loss, no gradient, for good: the policy always gives the same answer, and nothing moves it."""

    codes = ("deadlock",)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Find the step from which everything stands still to the end, after a time when something moved."""
        dead = view.dead
        still = [view.series(name) for name in (metric.GRAD_NORM, metric.LOSS, "policy_loss")]
        still = [s for s in still if len(s)]
        if len(dead) < self.ROWS_OF_DEADLOCK or not still:
            return
        # A KL or entropy term may keep a loss from being zero; the gradient is what counts where it is logged.
        still = [s for s in still if s.name == metric.GRAD_NORM or abs(s.values[-1]) <= _STILL]
        if not still:
            return
        starts = [dead.steps[tail_start(dead, lambda v: v >= _DEAD)]]
        starts += [series.steps[tail_start(series, lambda v: abs(v) <= _STILL)] for series in still]
        begin = max(starts)
        frozen = sum(step >= begin for step in dead.steps)
        gradient = view.series(metric.GRAD_NORM)
        moved = any(v < _DEAD for v in dead.values) or any(v > _STILL for v in gradient.values)
        if dead.values[-1] < _DEAD or (len(gradient) and gradient.values[-1] > _STILL) or not moved:
            return
        case = Candidate("deadlock")
        case.add(
            self.STANDS_STILL_WEIGHT * stats.ramp(frozen, 1, max(self.STILL_ROWS, self.STILL_SHARE * len(dead))),
            "stands-still",
            rows=frozen,
            step=begin,
        )
        if frozen < self.FEW_FROZEN:
            case.add(self.FEW_ROWS_WEIGHT, "few-rows", rows=frozen)
        case.add(
            self.DEAD_ROWS_ARE_USUAL_WEIGHT * self._by_chance(view, dead, begin, frozen),
            "dead-rows-are-usual",
            rows=frozen,
        )
        reward_trend = view.reward_trend
        alive = sum(v < _DEAD for v in dead.between(end=begin))
        entropy = view.entropy
        open_minded = not len(entropy) or entropy.values[-1] > self.OPEN_ENTROPY
        if reward_trend.near_top and alive >= self.CLIMB_ROWS and open_minded:
            case.add(self.REWARD_ROSE_SLOWLY_TO_TOP_WEIGHT, "reward-rose-slowly-to-top", rows=alive)
            case.severity = "warning"
        shift = shift_at(view.series(metric.REWARD, reward_trend.source), begin)
        if shift and shift[1] < shift[0] and unmoved(view, begin):
            case.add(self.POLICY_UNMOVED_WEIGHT, "policy-unmoved")
        arrived = self._arrived(view, begin)
        if arrived > 0:
            case.add(self.REWARD_NEAR_TOP_WEIGHT * arrived, "reward-near-top", value=reward_trend.reward.late)
            case.severity = "warning"
        self._entropy_left(case, view, frozen)
        case.first_step = begin
        for name in (metric.REWARD, metric.ENTROPY, metric.GRAD_NORM, metric.LOSS):
            series = view.series(name)
            if before := index_at(series, begin):
                case.show_value(name, series.steps[before - 1], series.values[before - 1])
            case.show(series, begin)
        yield case

    def _entropy_left(self, case: Candidate, view: View, frozen: int) -> None:
        """Entropy that is still there speaks against a deadlock, unless the reward has not moved either."""
        entropy = view.entropy
        rewards = view.series(metric.REWARD, view.reward_trend.source).values[-frozen:]
        if len(entropy) < self.ROWS_OF_ENTROPY or constant(rewards):
            return
        early = stats.median(entropy.values[: max(2, len(entropy) // self.BEGIN_PART)])
        self.argue(case, "entropy-kept", stats.ratio(entropy.values[-1], early), late=entropy.values[-1])

    def _arrived(self, view: View, begin: float) -> float:
        """0 to 1: how near its maximum the reward stood before all stood still: a run that had arrived, not a leap."""
        reward, top = view.series(metric.REWARD, view.reward_trend.source), view.reward_trend.top
        if view.reward_trend.began_at_top:
            return stats.ramp(reward.values[-1] / top, *self.ARRIVED_RANGE) if top else 0.0
        before = reward.between(end=begin)[self.ROWS_BEFORE :]
        if len(before) < self.LEAST_BEFORE or not top or reward.values[-1] < self.TOP_AFTER * top:
            return 0.0
        return stats.ramp(stats.mean(before) / top, *self.ARRIVED_RANGE)

    def _by_chance(self, view: View, dead: Series, begin: float, frozen: int) -> float:
        """0 to 1: how well a run that is dead in most rows anyway explains a dead stretch at its end.

        Dead rows of one and the same reward at the very beginning are a hard start, and say nothing about later rows.
        """
        before = [v >= _DEAD for v in dead.between(end=begin)]
        first = before.index(False) if False in before else len(before)
        rewards = view.series(metric.REWARD, view.reward_trend.source).values[:first]
        if rewards and not constant(rewards):
            first = 0
        usual = (sum(before[first:]) + self.HALF_A_ROW) / (len(before) - first + 1)
        return stats.ramp(-frozen * stats.ln(min(usual, self.USUAL_MOST)), *self.CHANCE_RANGE)
