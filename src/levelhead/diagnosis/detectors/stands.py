"""Outcomes that do not follow: scores that stand still, stay at their floor or fall, alone or while a reward rises."""

from __future__ import annotations

import math
from collections.abc import Iterator

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Candidate, Tuned, View
from levelhead.diagnosis.history import Series, part_kind
from levelhead.diagnosis.trend import ends, proven_flat, trend
from levelhead.diagnosis.verdict import compare
from levelhead.metrics import held_out


class Outcomes(Tuned):
    """What is to get better does not, whatever the reward says."""

    codes = ("reward-hacking", "no-improvement", "constant-answer")

    def examine(self, view: View) -> Iterator[Candidate]:
        """Compare each outcome with the reward that is trained on, and evaluations with one another."""
        scores = [view.history.series(name) for name in view.reward_trend.held_out]
        outcomes = [*view.history.parts("outcome"), *scores]
        total = view.series(metric.REWARD)
        rises = [trend(s).rise for s in (total, *view.history.parts("form")) if len(s) >= self.ROWS]
        gain = stats.ramp(max(rises, default=0.0), *self.GAIN)
        # A total may rise by what nobody named; a reward for the form is known not to be what counts.
        flat = self.FLAT_WEIGHT if max(rises[1:], default=0.0) > self.GAIN[0] else self.FLAT_WEIGHT_TOTAL
        against = [
            self._under_a_rise(series, gain, flat, max(total.values))
            for series in (*outcomes, *view.history.parts("other"))
            if gain and len(total) and len(series) >= self.ROWS and series.name != view.reward_trend.source
        ]
        if against:
            # Several scores of one thing are one argument: the plainest.
            worst = max(against, key=lambda case: case.log_odds)
            yield worst.show(total, *total.steps[:1], *total.steps[-1:])
        # Without a reward to train on, what judges outcomes is all that there is to go by.
        for series in scores if len(total) else [*scores, *view.history.parts("outcome")]:
            yield from self._alone(view, series)
        yield from self._frozen(view)

    def _under_a_rise(self, series: Series, gain: float, flat: float, top: float) -> Candidate:
        """Argue from an outcome that the rising reward does not carry along."""
        case = Candidate("reward-hacking", first_step=series.steps[0])
        gain *= stats.ramp(max(len(series), series.steps[-1] - series.steps[0]), *self.STEPS)
        course = trend(series)
        is_outcome = series.name.startswith(held_out.NUMBER.prefix) or part_kind(series.name.split("/")[1]) == "outcome"
        if top > 0 and max(series.values) <= min(self.FLOOR, self.FLOOR_OF_TOP * top):
            if is_outcome or max(series.values) > self.OTHER_FLOOR:
                # What has not come yet may still come: no run is ended for it.
                case.severity = "warning"
                weight = self.AT_FLOOR_WEIGHT if is_outcome else self.OTHER_WEIGHT
                case.add(weight * gain, "outcome-at-floor", metric=series.name, late=course.late)
        elif is_outcome:
            down = self.FALLS_WEIGHT * max(course.fall, course.crash)
            still = flat * (1 - course.rise) * proven_flat(series, 1.0 if max(series.values) <= 1 else None)
            key = "outcome-falls" if down > still else "outcome-stays"
            case.severity = None if down > still else "warning"
            case.add(gain * max(down, still), key, metric=series.name, early=course.early, late=course.late)
        return case.show(series, series.steps[0], series.steps[-1])

    def _alone(self, view: View, series: Series) -> Iterator[Candidate]:
        """A held-out score that falls is no improvement, with a reward beside it or without."""
        early, late = series.values[0], series.values[-1]
        case = Candidate("no-improvement", first_step=series.steps[0])
        if len(series) <= self.PAIR_ROWS:
            if self._change(view, series) not in ("below", None) or self._part_of_a_rise(view, series):
                return
            lost = stats.ramp((early - late) / max(abs(early), 1e-9), *self.PAIR)
            case.add(self.PAIR_WEIGHT * lost, "held-out-fell", metric=series.name, early=early, late=late)
        elif len(series) >= self.HELD_OUT_ROWS:
            judged = trend(series)
            early, late = ends(series)
            weight = self.HELD_OUT_FALLS_WEIGHT * max(judged.fall, judged.crash)
            case.add(weight, "held-out-fell", metric=series.name, early=early, late=late)
        if case.evidence:
            yield case.show(series, series.steps[0], series.steps[-1])

    def _change(self, view: View, series: Series) -> str | None:
        """Which side of its first reading the last one lies on by their errors, as in a verdict; else ``None``."""
        errors = view.history.series(series.name.removesuffix(held_out.SCORE) + held_out.SE).values
        if not errors or not series.name.endswith(f"/{held_out.SCORE}"):
            return None
        change = series.values[-1] - series.values[0]
        return compare(change, math.hypot(errors[0], errors[-1]), None)

    def _part_of_a_rise(self, view: View, series: Series) -> bool:
        """Whether a score is that of one kind of items of a task whose whole score rose: that is an improvement."""
        task, _, kind = series.name.removesuffix(f"/{held_out.SCORE}").rpartition("/")
        whole = view.history.series(f"{task}/{held_out.SCORE}")
        return "=" in kind and len(whole) > 1 and self._change(view, whole) == "above"

    def _frozen(self, view: View) -> Iterator[Candidate]:
        """Evaluations that give the very same rates again and again: the answers no longer change."""
        case = Candidate("constant-answer")
        curves = [*view.history.matching(held_out.NUMBER.prefix), *view.history.parts("outcome")]
        frozen = 0
        for series in curves:
            same = stats.tail_run([value == series.values[-1] for value in series.values])
            moved = same < len(series) and same >= max(self.FROZEN_ROWS, self.FROZEN_SHARE * len(series))
            inside = moved and self.FLOOR < series.values[-1] < self.FROZEN_TOP * max(1.0, *series.values)
            if inside and frozen < self.FROZEN_MOST:
                frozen += 1
                case.add(self.FROZEN_WEIGHT, "score-frozen", metric=series.name, late=series.values[-1], rows=same)
                case.first_step = series.steps[-same]
                case.show(series, series.steps[0], case.first_step, series.steps[-1])
        if frozen:
            yield case
