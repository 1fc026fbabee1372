"""Numbers and gradients: what is not finite, what explodes, what stays zero."""

from __future__ import annotations

import math
from collections.abc import Iterator

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Candidate, Tuned, View
from levelhead.diagnosis.history import Series
from levelhead.diagnosis.trend import shift_at

# Set by hand on the development logs (docs/doctor.md): log-odds of a column that is never finite.
_WEIGHTS = {
    metric.LOSS: 8.0, metric.GRAD_NORM: 8.0, "policy_loss": 8.0, "value_loss": 7.0, metric.KL: 6.0, "ppo_kl": 4.5,
    metric.ENTROPY: 5.0, metric.REWARD: 5.0,
}  # fmt: skip
_STILL = 1e-8  # norm that is 0 as trainers print it


class NonFinite(Tuned):
    """NaN or infinite losses, gradients, KLs, entropies or rewards."""

    codes = ("nonfinite",)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Tell a run that is gone from one that lost a step."""
        case = Candidate("nonfinite")
        best = 0.0
        for name, full in _WEIGHTS.items():
            series = view.history.series(name)
            bad = series.bad
            if not bad.count:
                continue
            weight, key = self._weigh(series, full, name)
            case.show_value(name, bad.first, bad.sample)
            if bad.last != bad.first:
                case.show_value(name, bad.last, math.nan)
            if weight > best:
                best = weight
                case.evidence = []
                share = bad.count / (bad.count + len(series) * series.stride)
                case.add(weight, key, metric=name, share=share, rows=bad.count)
                case.first_step = bad.first
                case.setup = bad.leading == bad.count and not len(series)
                if weight < self.CRITICAL_FROM:
                    case.severity = "info" if weight < self.WARNING_FROM else "warning"
        gone = [name for name in _WEIGHTS if view.history.series(name).bad.trailing]
        if len(gone) >= self.COLUMNS_GONE:
            case.add(self.LAST_ROW_WEIGHT, "last-row-not-finite", columns=len(gone))
            case.severity = case.severity and "warning"
        if case.evidence:
            yield case

    def _weigh(self, series: Series, full: float, name: str) -> tuple[float, str]:
        bad = series.bad
        seen = bad.count + len(series) * series.stride
        if not len(series):
            return full, "never-finite"
        if bad.trailing >= max(2, self.TRAILING_SHARE * seen):
            return full - 1, "not-finite-to-the-end"
        share = bad.count / seen
        if name == metric.GRAD_NORM and bad.leading == bad.count:
            # fp16 loss scaling starts too high on purpose and overflows until it has come down.
            return 1.0 + self.AT_FIRST_WEIGHT * stats.ramp(share, *self.AT_FIRST_RANGE), "not-finite-at-first"
        return 1.0 + self.AT_TIMES_WEIGHT * stats.ramp(share, *self.AT_TIMES_RANGE) + stats.ramp(
            bad.trailing, *self.AT_THE_END_RANGE
        ), "not-finite-at-times"


class GradientSpike(Tuned):
    """Gradients far beyond the run's own: alone, again and again, or with lasting harm."""

    codes = ("gradient-spike",)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Weigh the size, the number, and what came after."""
        gradient = view.series(metric.GRAD_NORM)
        n = len(gradient)
        if not n:
            yield from self._from_loss(view)
            return
        case = Candidate("gradient-spike")
        values, steps = gradient.values, gradient.steps
        ratios = self._multiples_of_usual(values)
        worst = max(range(n), key=lambda i: (ratios[i], values[i]))
        spikes = [i for i in range(n) if ratios[i] >= self.SPIKE]
        top = max(range(n), key=values.__getitem__)
        unit = _unit_of(gradient, view.series(metric.REWARD_STD))
        size = values[top] / unit
        absurd = self.ABSURD_WEIGHT * stats.ramp(stats.log10(max(size, 1e-12)), *self.ABSURD_RANGE)
        case.add(
            absurd * (1 - self.GRADIENT_ABSURD_WEIGHT * view.reward_trend.learned), "gradient-absurd", value=values[top]
        )
        case.first_step = steps[top]
        if spikes:
            case.first_step = steps[spikes[0]] if size < self.FIRST_ABSURD else steps[top]
            case.add(
                1.0 * stats.ramp(stats.log10(ratios[worst]), *self.GRADIENT_SPIKED_RANGE),
                "gradient-spiked",
                factor=ratios[worst],
                step=steps[worst],
            )
            worst_few = sorted(spikes, key=lambda i: -ratios[i])[: self.WORST]
            harm = max(self._aftermath(view, steps[i]) for i in worst_few)
            case.add(
                self.HARM_AFTER_SPIKE_WEIGHT * harm * (1 - self.HARM_LEARNED * view.reward_trend.learned),
                "harm-after-spike",
                step=steps[worst],
            )
            if n >= self.ROWS_OF_OFTEN and len(spikes) > self.OFTEN * n:
                self.argue(case, "gradient-spikes-often", len(spikes) / n, count=len(spikes))
            if harm < self.NO_HARM and size < self.HARMLESS_NORM:
                case.add(-1.0, "no-harm-after-spike")
                if len(spikes) <= max(2, self.OFTEN * n):
                    case.severity = "info"
        self._growth(case, view, gradient)
        case.add(self.REWARD_RISES_WEIGHT * view.reward_trend.learned, "reward-rises")
        case.show(gradient, *(steps[i] for i in sorted({max(0, worst - 1), worst, top, n - 1})))
        yield case

    def _multiples_of_usual(self, values: list[float]) -> list[float]:
        """Each gradient by the usual one before it; batches without contrast have none, and measure no others."""
        moving = [value for value in values if value > _STILL]
        typical = stats.median(moving)
        usual = iter(stats.running_median(moving, self.MEDIAN_ROWS))
        return [value / max(next(usual), self.LEAST_USUAL * typical) if value > _STILL else 0.0 for value in values]

    def _from_loss(self, view: View) -> Iterator[Candidate]:
        """Without gradients in the log: a loss that leaves its own range by orders of magnitude."""
        loss = view.series(metric.LOSS, "policy_loss")
        if len(loss) < self.ROWS_OF_LOSS:
            return
        size = [abs(v) for v in loss.values]
        # A loss of exactly 0 is a batch without contrast, and no measure of the others.
        early = [v for v in size[: max(2, len(size) // 2)] if v > 0]
        usual, top = stats.median(early), max(size)
        case = Candidate("gradient-spike", first_step=loss.steps[size.index(top)])
        if top > self.LOSS_FROM:
            self.argue(case, "loss-exploded", stats.log10(top / max(usual, self.LEAST_LOSS)), early=usual, late=top)
            case.add(self.REWARD_RISES_WEIGHT * view.reward_trend.learned, "reward-rises")
            yield case.show(loss, loss.steps[0], loss.steps[size.index(top)], loss.steps[-1])

    def _growth(self, case: Candidate, view: View, gradient: Series) -> None:
        n = len(gradient)
        if n < self.ROWS_OF_GROWTH:
            if (
                n >= 2
                and gradient.values[-1] > self.FEW_ROWS_GROWTH * gradient.values[0]
                and gradient.values[-1] > self.FEW_ROWS_NORM
            ):
                case.add(self.GRADIENT_GREW_WEIGHT, "gradient-grew", early=gradient.values[0], late=gradient.values[-1])
            return
        m = stats.edge(n, self.END_SHARE)
        early, late = stats.median(gradient.values[: 2 * m]), stats.median(gradient.values[-m:])
        if late > 2 and early > 0:
            grown = stats.ramp(stats.log10(late / early), *self.GREW_RANGE)
            case.add(self.GREW_WEIGHT * grown, "gradient-grew", early=early, late=late)
            case.add(
                self.REWARD_FALLS_WEIGHT * grown * view.reward_trend.lost,
                "reward-falls",
                value=view.reward_trend.reward.late,
            )

    def _aftermath(self, view: View, step: float) -> float:
        """0 to 1: how much harm the run shows after ``step`` (reward down, the rest elsewhere for good)."""
        harm = 0.0
        reward = view.series(metric.REWARD, view.reward_trend.source)
        moved = shift_at(reward, step)
        if moved:
            before, after = moved
            noise = max(stats.noise(reward.values), view.reward_trend.reward.scale * self.SCALE_OF_NOISE, 1e-12)
            if before - after > self.SURE_FALL * noise and before - after > self.FALL_OF_LEVEL * max(abs(before), 1e-9):
                harm += self.REWARD_HARM
        factors = {metric.ENTROPY: 2.0, metric.KL: self.KL_MOVED, metric.MEAN_LENGTH: self.LENGTH_MOVED}
        for name, factor in factors.items():
            moved = shift_at(view.series(name), step)
            if moved and min(abs(moved[0]), abs(moved[1])) >= 0:
                low, high = sorted((max(abs(moved[0]), self.FLOOR), max(abs(moved[1]), self.FLOOR)))
                harm += self.OTHER_HARM if high / low >= factor else 0.0
        return min(1.0, harm)


def _unit_of(gradient: Series, spread: Series) -> float:
    """What a norm of 1 is in this run: the spread of rewards in thousands whose advantages are not divided by it.

    Such gradients are that large from the first row to the last; where advantages are divided, most are small.
    """
    if not len(spread):
        return 1.0
    return max(1.0, min(stats.median(spread.values), stats.median(gradient.values)))


class ZeroGradient(Tuned):
    """Groups have contrast, yet no gradient arrives: a mask, a detached tensor, a weight of zero."""

    codes = ("zero-gradient-despite-signal",)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Compare gradient and contrast row by row."""
        gradient, dead, std = view.series(metric.GRAD_NORM), view.dead, view.series(metric.REWARD_STD)
        if not len(gradient):
            return
        # Differences over a whole batch say nothing of differences within its groups.
        within = dead.name in (metric.ZERO_STD, metric.REWARD_STD)
        contrast = {step: v < self.CONTRAST for step, v in zip(dead.steps, dead.values, strict=True) if within}
        spread = {step: v > self.SPREAD for step, v in zip(std.steps, std.values, strict=True)}
        if not contrast and not spread:
            return
        rows = [
            (step, v)
            for step, v in zip(gradient.steps, gradient.values, strict=True)
            if contrast.get(step, True) and spread.get(step, True) and (step in contrast or step in spread)
        ]
        if not rows:
            return
        zero = [step for step, v in rows if v <= _STILL]
        tiny = [step for step, v in rows if v <= self.TINY]
        share = len(zero) / len(rows)
        case = Candidate("zero-gradient-despite-signal", setup=True)
        n = len(rows)
        certainty = {1: self.ONE_ROW, 2: self.TWO_ROWS}.get(n, 1.0)
        self.argue(case, "gradient-zero", share, certainty, rows=len(zero), of=n)
        if share < self.MOSTLY_ZERO:
            self.argue(case, "gradient-tiny", len(tiny) / n, certainty, rows=len(tiny), of=n)
        if not len(view.history.series(metric.ZERO_STD)):
            case.add(self.CONTRAST_NOT_MEASURED_WEIGHT if case.evidence else 0.0, "contrast-not-measured")
        case.add(self.REWARD_RISES_WEIGHT * view.reward_trend.learned if case.evidence else 0.0, "reward-rises")
        hits = zero or tiny
        if hits:
            case.first_step = hits[0]
            case.show(gradient, hits[0], hits[-1]).show(std, hits[0]).show(view.dead_readings, hits[0])
            yield case
