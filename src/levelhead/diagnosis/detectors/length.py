"""Completion lengths: cut, running away, shrinking, fixed, never ending."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Candidate, Tuned, View
from levelhead.diagnosis.history import Series
from levelhead.diagnosis.trend import crossing


class Lengths(Tuned):
    """All findings that lengths and truncation show, told apart by order and by what the reward did."""

    codes = ("length-truncation", "length-runaway", "length-collapse", "length-fixed", "eos-never")

    # Of eight public runs with all answers cut, seven had too short a limit; in three an end may have been missing.

    def examine(self, view: View) -> Iterator[Candidate]:
        """Look at the share of cut completions, and at the mean length's own history."""
        mean, cut = view.series(metric.MEAN_LENGTH), self._cut(view)
        if len(cut):
            yield self._truncation(view, cut)
            yield self._never_ends(view, cut, mean)
        if len(mean):
            yield from self._change(view, mean, cut)
            if fixed := self._fixed(view, mean):
                yield fixed

    def _cut(self, view: View) -> Series:
        """Share of completions that hit the limit: logged, or 1 where even the shortest stands at a fixed maximum."""
        logged = view.series(metric.CLIPPED_RATIO)
        if len(logged):
            return logged
        # Where the shortest answer (or the mean of all) stands at the very maximum in every row, all are cut.
        for name, least in ((metric.MIN_LENGTH, 1), (metric.MEAN_LENGTH, self.CAP_ROWS)):
            series = view.series(name)
            highest = max(view.series(metric.MAX_LENGTH).values or series.values, default=0.0)
            if highest != round(highest):
                # A mean that is no whole number is of answers that differ.
                continue
            at_cap = [v >= highest for v in series.values]
            if len(series) >= least and highest > self.CAP_LEAST and sum(at_cap) >= self.CAP_SHARE * len(series):
                return Series(name, series.steps, [float(v) for v in at_cap])
        return logged

    def _truncation(self, view: View, cut: Series) -> Candidate:
        reward_trend = view.reward_trend
        n = len(cut)
        # One batch is a small sample of a share.
        m = max(stats.edge(n), min(self.BATCHES, n // 2))
        early, late = stats.mean(cut.values[:m]), stats.mean(cut.values[-m:])
        peak = max(stats.smooth(cut.values, m)[m - 1 :]) if n else 0.0
        level = max(late, self.OF_PEAK * peak)
        case = Candidate("length-truncation")
        weight = self.CUT_WEIGHT * stats.ramp(level, *self.CUT_RANGE) + self.CUT_MORE_WEIGHT * stats.ramp(
            level, *self.CUT_MORE_RANGE
        )
        case.add(weight, "cut-share", share=level)
        if n >= self.ROWS_OF_GROWTH:
            sure = stats.surety(cut.values, level - early, m)
            self.argue(case, "cut-share-grows", level - early, sure, early=early, late=level)
            self._outcome(case, view, level)
        spared = 1 - self.RISES_ALL_THE_SAME * stats.ramp(level, *self.NEARLY_ALL_RANGE)
        case.add(self.REWARD_RISES_WEIGHT * reward_trend.learned * spared, "reward-rises")
        case.setup = early > self.CUT_FROM_START
        case.first_step = (
            cut.steps[0] if case.setup else crossing(cut, max(self.CUT_BAD, self.CUT_BAD_OF_LEVEL * level))
        )
        case.show(cut, cut.steps[0], case.first_step, cut.steps[-1])
        return case.show(view.series(metric.MEAN_LENGTH), cut.steps[-1])

    def _outcome(self, case: Candidate, view: View, strength: float) -> None:
        reward_trend = view.reward_trend
        if strength > self.CUT_MATTERS:
            case.add_fall(self.REWARD_FALLS_WEIGHT, reward_trend)
            if reward_trend.has_signal and reward_trend.learned < self.NOT_LEARNED:
                case.add(self.REWARD_FLAT_WEIGHT, "reward-flat")

    def _never_ends(self, view: View, cut: Series, mean: Series) -> Candidate:
        case = Candidate("eos-never", setup=True, first_step=cut.steps[0])
        n = len(cut)
        share = stats.mean([float(v >= self.ALL_CUT) for v in cut.values])
        case.add(
            {1: self.NEVER_ENDS_ONE_ROW_WEIGHT, 2: self.NEVER_ENDS_TWO_ROWS_WEIGHT}.get(n, self.NEVER_ENDS_WEIGHT)
            * stats.ramp(share, *self.NEVER_ENDS_RANGE),
            "never-ends",
            rows=n,
        )
        if case.evidence and len(mean):
            cap = max(mean.values)
            weight = self.LONG_CAP_WEIGHT * stats.ramp(stats.ln(cap), *self.LONG_CAP_RANGE)
            case.add(self.SHORT_CAP_WEIGHT if cap <= self.SHORT_CAP else weight, "cap", cap=cap)
        ended = view.series(metric.MEAN_TERMINATED_LENGTH)
        if case.evidence and len(ended) and max(ended.values) > 0:
            case.add(-1.0, "some-end", length=max(ended.values))
        case.add(
            self.NEVER_ENDS_REWARD_RISES_WEIGHT * view.reward_trend.learned if case.evidence else 0.0, "reward-rises"
        )
        return case.show(cut, cut.steps[0], cut.steps[-1]).show(mean, *mean.steps[-1:])

    def _change(self, view: View, mean: Series, cut: Series) -> Iterator[Candidate]:
        n = len(mean)
        if n < 2:
            return
        m = stats.edge(n)
        smooth = stats.smooth(mean.values, m)[m - 1 :]
        early, late = stats.median(mean.values[:m]), stats.median(mean.values[-m:])
        few = {2: self.TWO_ROWS, 3: self.THREE_ROWS}.get(n, 1.0)
        highest = max(late, self.HIGHEST_OF_PEAK * max(smooth))
        up, down = (few * self._sure(mean.values, end - early, m) for end in (highest, late))
        yield self._runaway(view, mean, cut, max(early, 1.0), highest, up)
        yield self._shrink(view, mean, max(early, 1.0), max(late, 1.0), down)

    def _runaway(self, view: View, mean: Series, cut: Series, early: float, late: float, sure: float) -> Candidate:
        reward_trend = view.reward_trend
        case = Candidate("length-runaway")
        growth = late / early
        self.argue(case, "length-grew", stats.ln(growth), sure, early=early, late=late)
        if growth > self.GREW and sure:
            m = stats.edge(len(cut)) if len(cut) else 0
            if m:
                share = max(stats.smooth(cut.values, m))
                self.argue(case, "cut-share", share, share=share)
            self._outcome(case, view, 1.0)
        case.add(self.RUNAWAY_REWARD_RISES_WEIGHT * reward_trend.learned, "reward-rises")
        # The first readings are what the growth is measured from, a high one among them included.
        m = stats.edge(len(mean))
        case.first_step = crossing(Series(mean.name, mean.steps[m:], mean.values[m:]), self.GREW * early)
        return case.show(mean, mean.steps[0], case.first_step, mean.steps[-1])

    def _shrink(self, view: View, mean: Series, early: float, late: float, sure: float) -> Candidate:
        reward_trend = view.reward_trend
        case = Candidate("length-collapse")
        shrink = early / late
        self.argue(case, "length-shrank", stats.ln(shrink), sure, early=early, late=late)
        if shrink > self.SHRANK and sure:
            case.add(1.0 * stats.ramp(-stats.ln(late), *self.LENGTH_TINY_RANGE), "length-tiny", late=late)
            case.add_fall(self.COLLAPSE_REWARD_FALLS_WEIGHT, reward_trend)
            if reward_trend.has_signal and reward_trend.learned < self.NOT_LEARNED:
                case.add(self.COLLAPSE_REWARD_FLAT_WEIGHT, "reward-flat")
        elif early <= self.ONLY_AN_END:
            # Nothing but an end token from the first row on; where one word is all that is asked for, it is rewarded.
            nothing = (
                stats.ramp(late, *self.NOTHING_RANGE)
                * (reward_trend.reward.late <= self.NO_REWARD)
                * (reward_trend.reward.n > 0)
            )
            case.add(self.LENGTH_TINY_WEIGHT * nothing, "length-tiny", late=late)
            case.setup = nothing > 0
        case.add(self.COLLAPSE_REWARD_RISES_WEIGHT * reward_trend.learned, "reward-rises")
        case.first_step = mean.steps[0] if case.setup else crossing(mean, early / self.SHRANK_BAD, above=False)
        return case.show(mean, mean.steps[0], case.first_step, mean.steps[-1])

    def _fixed(self, view: View, mean: Series) -> Candidate | None:
        low, high = view.series(metric.MIN_LENGTH), view.series(metric.MAX_LENGTH)
        cut = view.series(metric.CLIPPED_RATIO).values
        ended = 1 - stats.mean(cut[-stats.edge(len(cut)) :])
        if cut and ended <= 1 - self.ALL_CUT:  # all stand at the limit, and their one length is its own
            return None
        case = Candidate("length-fixed")
        if len(low) and len(low) == len(high):
            same = [a == b for a, b in zip(low.values, high.values, strict=True)]
            tail = stats.tail_run(same)
            share = sum(same) / len(same)
            steps = low.steps
        else:
            same = [b == mean.values[-1] for b in mean.values]
            tail, share, steps = stats.tail_run(same), sum(same) / len(same), mean.steps
            if tail < self.FIXED_ROWS or mean.values[-1] != round(mean.values[-1]):
                return None
        if not tail or (tail < self.FIXED_SHARE * len(same) and share < self.FIXED_ANYWHERE):
            return None
        n = len(same)
        case.add(
            {1: self.SAME_ONE_ROW_WEIGHT, 2: self.SAME_TWO_ROWS_WEIGHT}.get(n, self.SAME_WEIGHT)
            * stats.ramp(max(share, tail / n), *self.LENGTH_SAME_RANGE),
            "length-same",
            length=mean.values[-1],
        )
        self.argue(case, "answers-are-short", mean.values[-1], ended, length=mean.values[-1])
        case.add(self.FIXED_REWARD_RISES_WEIGHT * view.reward_trend.learned, "reward-rises")
        case.first_step = steps[n - tail]
        case.setup = tail == n
        return case.show(mean, case.first_step, mean.steps[-1])

    def _sure(self, values: Sequence[float], gap: float, window: int) -> float:
        """How plainly lengths have changed: against their noise, or, where few, by going one way throughout."""
        plain = stats.surety(values, gap, window)
        if len(values) >= self.MANY:
            return plain
        return max(plain, stats.ramp(math.copysign(1, gap) * stats.kendall_z(values), *self.ONE_WAY_RANGE))
