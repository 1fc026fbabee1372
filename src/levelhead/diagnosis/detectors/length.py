"""Completion lengths: cut, running away, shrinking, fixed, never ending."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Suspicion, View, crossing
from levelhead.diagnosis.history import Series


class Lengths:
    """All findings that lengths and truncation show, told apart by order and by what the reward did."""

    codes = ("length-truncation", "length-runaway", "length-collapse", "length-fixed", "eos-never")

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Look at the share of cut completions, and at the mean length's own history."""
        mean, cut = view.series(metric.MEAN_LENGTH), self._cut(view)
        if len(cut):
            yield self._truncation(view, cut)
            yield self._never_ends(view, cut, mean)
        if len(mean):
            yield from self._change(view, mean, cut)
            fixed = self._fixed(view, mean)
            if fixed:
                yield fixed

    def _cut(self, view: View) -> Series:
        """Share of completions that hit the limit: logged, or 1 where even the shortest stands at a fixed maximum."""
        logged = view.series(metric.CLIPPED_RATIO)
        if len(logged):
            return logged
        # Where the shortest answer (or the mean of all) stands at the very maximum in every row, all are cut.
        for name, least in ((metric.MIN_LENGTH, 1), (metric.MEAN_LENGTH, 3)):
            series = view.series(name)
            highest = max(view.series(metric.MAX_LENGTH).values or series.values, default=0.0)
            if highest != round(highest):
                # A mean that is no whole number is of answers that differ.
                continue
            at_cap = [v >= highest for v in series.values]
            if len(series) >= least and highest > 8 and sum(at_cap) >= 0.9 * len(series):
                return Series(name, series.steps, [float(v) for v in at_cap])
        return logged

    def _truncation(self, view: View, cut: Series) -> Suspicion:
        course = view.course
        n = len(cut)
        # One batch is a small sample of a share.
        m = max(stats.edge(n), min(3, n // 2))
        early, late = stats.mean(cut.values[:m]), stats.mean(cut.values[-m:])
        peak = max(stats.smooth(cut.values, m)[m - 1 :]) if n else 0.0
        level = max(late, 0.8 * peak)
        case = Suspicion("length-truncation")
        weight = 3.0 * stats.ramp(level, 0.15, 0.6) + 0.8 * stats.ramp(level, 0.7, 0.95)
        case.add(weight, "cut-share", share=level)
        if n >= 4:
            sure = stats.surety(cut.values, level - early, m)
            case.add(1.2 * sure * stats.ramp(level - early, 0.1, 0.4), "cut-share-grows", early=early, late=level)
            self._outcome(case, view, level)
        case.add(-4.5 * course.learned, "reward-rises")
        case.setup = early > 0.5
        case.first_step = cut.steps[0] if case.setup else crossing(cut, max(0.15, 0.4 * level))
        case.show(cut, cut.steps[0], *((case.first_step,) if case.first_step is not None else ()), cut.steps[-1])
        return case.show(view.series(metric.MEAN_LENGTH), cut.steps[-1])

    def _outcome(self, case: Suspicion, view: View, strength: float) -> None:
        course = view.course
        if strength > 0.15:
            case.add(1.3 * course.lost * (1 - course.learned), "reward-falls", value=course.reward.late)
            if course.has_signal and course.learned < 0.2:
                case.add(0.4, "reward-flat")

    def _never_ends(self, view: View, cut: Series, mean: Series) -> Suspicion:
        case = Suspicion("eos-never", setup=True, first_step=cut.steps[0])
        n = len(cut)
        share = stats.mean([float(v >= 0.98) for v in cut.values])
        case.add({1: 2.4, 2: 3.0}.get(n, 4.6) * stats.ramp(share, 0.9, 0.99), "never-ends", rows=n)
        if case.clues and len(mean):
            cap = max(mean.values)
            case.add(0.6 if cap >= 512 else (-1.6 if cap <= 128 else 0.0), "cap", cap=cap)
        ended = view.series(metric.MEAN_TERMINATED_LENGTH)
        if case.clues and len(ended) and max(ended.values) > 0:
            case.add(-1.0, "some-end", length=max(ended.values))
        case.add(-3.2 * view.course.learned if case.clues else 0.0, "reward-rises")
        return case.show(cut, cut.steps[0], cut.steps[-1]).show(mean, *mean.steps[-1:])

    def _change(self, view: View, mean: Series, cut: Series) -> Iterator[Suspicion]:
        n = len(mean)
        if n < 2:
            return
        m = stats.edge(n)
        smooth = stats.smooth(mean.values, m)[m - 1 :]
        early, late = stats.median(mean.values[:m]), stats.median(mean.values[-m:])
        few = {2: 0.5, 3: 0.8}.get(n, 1.0)
        highest = max(late, 0.8 * max(smooth))
        up, down = (few * _sure(mean.values, end - early, m) for end in (highest, late))
        yield self._runaway(view, mean, cut, max(early, 1.0), highest, up)
        yield self._shrink(view, mean, max(early, 1.0), max(late, 1.0), down)

    def _runaway(self, view: View, mean: Series, cut: Series, early: float, late: float, sure: float) -> Suspicion:
        course = view.course
        case = Suspicion("length-runaway")
        growth = late / early
        case.add(
            3.0 * sure * stats.ramp(stats.ln(growth), stats.ln(1.6), stats.ln(4)), "length-grew", early=early, late=late
        )
        if growth > 1.5 and sure:
            m = stats.edge(len(cut)) if len(cut) else 0
            if m:
                share = max(stats.smooth(cut.values, m))
                case.add(1.2 * stats.ramp(share, 0.05, 0.3), "cut-share", share=share)
            self._outcome(case, view, 1.0)
        case.add(-4.0 * course.learned, "reward-rises")
        # The first readings are what the growth is measured from, a high one among them included.
        m = stats.edge(len(mean))
        case.first_step = crossing(Series(mean.name, mean.steps[m:], mean.values[m:]), 1.5 * early)
        return case.show(
            mean, mean.steps[0], *((case.first_step,) if case.first_step is not None else ()), mean.steps[-1]
        )

    def _shrink(self, view: View, mean: Series, early: float, late: float, sure: float) -> Suspicion:
        course = view.course
        case = Suspicion("length-collapse")
        shrink = early / late
        case.add(
            3.0 * sure * stats.ramp(stats.ln(shrink), stats.ln(1.5), stats.ln(4)),
            "length-shrank",
            early=early,
            late=late,
        )
        if shrink > 1.4 and sure:
            case.add(1.0 * stats.ramp(-stats.ln(late), -stats.ln(20), -stats.ln(4)), "length-tiny", late=late)
            case.add(2.0 * course.lost * (1 - course.learned), "reward-falls", value=course.reward.late)
            if course.has_signal and course.learned < 0.2:
                case.add(0.3, "reward-flat")
        elif early <= 5:
            # Nothing but an end token from the first row on; where one word is all that is asked for, it is rewarded.
            nothing = stats.ramp(late, 4, 2) * (course.reward.late <= 0.02) * (course.reward.n > 0)
            case.add(3.4 * nothing, "length-tiny", late=late)
            case.setup = nothing > 0
        case.add(-3.5 * course.learned, "reward-rises")
        case.first_step = mean.steps[0] if case.setup else crossing(mean, early / 1.5, above=False)
        return case.show(
            mean, mean.steps[0], *((case.first_step,) if case.first_step is not None else ()), mean.steps[-1]
        )

    def _fixed(self, view: View, mean: Series) -> Suspicion | None:
        low, high = view.series(metric.MIN_LENGTH), view.series(metric.MAX_LENGTH)
        case = Suspicion("length-fixed")
        if len(low) and len(low) == len(high):
            same = [a == b for a, b in zip(low.values, high.values, strict=True)]
            tail = stats.tail_run(same)
            share = sum(same) / len(same)
            steps = low.steps
        else:
            same = [b == mean.values[-1] for b in mean.values]
            tail, share, steps = stats.tail_run(same), sum(same) / len(same), mean.steps
            if tail < 4 or mean.values[-1] != round(mean.values[-1]):
                return None
        if not tail or (tail < 0.2 * len(same) and share < 0.5):
            return None
        n = len(same)
        case.add(
            {1: 3.2, 2: 3.6}.get(n, 5.0) * stats.ramp(max(share, tail / n), 0.15, 0.6),
            "length-same",
            length=mean.values[-1],
        )
        cut = view.series(metric.CLIPPED_RATIO).values
        ended = 1 - stats.mean(cut[-stats.edge(len(cut)) :])
        case.add(-2.6 * ended * stats.ramp(mean.values[-1], 32, 12), "answers-are-short", length=mean.values[-1])
        case.add(-3.0 * view.course.learned, "reward-rises")
        case.first_step = steps[n - tail]
        case.setup = tail == n
        return case.show(mean, case.first_step, mean.steps[-1])


def _sure(values: Sequence[float], gap: float, window: int) -> float:
    """How plainly lengths have changed: against their noise, or, where they are few, by going one way throughout."""
    plain = stats.surety(values, gap, window)
    if len(values) >= 12:
        return plain
    return max(plain, stats.ramp(math.copysign(1, gap) * stats.kendall_z(values), 1.5, 2.5))
