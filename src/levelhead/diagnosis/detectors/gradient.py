"""Numbers and gradients: what is not finite, what explodes, what stays zero."""

from __future__ import annotations

import math
from collections.abc import Iterator

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Suspicion, View
from levelhead.diagnosis.detectors.policy import aftermath
from levelhead.diagnosis.history import Series

_WEIGHTS = {
    metric.LOSS: 8.0, metric.GRAD_NORM: 8.0, "policy_loss": 8.0, "value_loss": 7.0, metric.KL: 6.0, "ppo_kl": 4.5,
    metric.ENTROPY: 5.0, metric.REWARD: 5.0,
}  # fmt: skip
_SPIKE = 10.0
_STILL = 1e-8


class NonFinite:
    """NaN or infinite losses, gradients, KLs, entropies or rewards."""

    codes = ("nonfinite",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Tell a run that is gone from one that lost a step."""
        case = Suspicion("nonfinite")
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
                case.clues = []
                share = bad.count / (bad.count + len(series) * series.stride)
                case.add(weight, key, metric=name, share=share, rows=bad.count)
                case.first_step = bad.first
                case.setup = bad.leading == bad.count and not len(series)
                if weight < 4:
                    case.severity = "info" if weight < 2.5 else "warning"
        if case.clues:
            yield case

    def _weigh(self, series: Series, full: float, name: str) -> tuple[float, str]:
        bad = series.bad
        seen = bad.count + len(series) * series.stride
        if not len(series):
            return full, "never-finite"
        if bad.trailing >= max(2, 0.03 * seen):
            return full - 1, "not-finite-to-the-end"
        share = bad.count / seen
        if name == metric.GRAD_NORM and bad.leading == bad.count:
            # fp16 loss scaling starts too high on purpose and overflows until it has come down.
            return 1.0 + 3 * stats.ramp(share, 0.1, 0.5), "not-finite-at-first"
        return 1.0 + 4.0 * stats.ramp(share, 0.02, 0.3) + stats.ramp(bad.trailing, 0, 1), "not-finite-at-times"


class GradientSpike:
    """Gradients far beyond the run's own: alone, again and again, or with lasting harm."""

    codes = ("gradient-spike",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Weigh the size, the number, and what came after."""
        gradient = view.series(metric.GRAD_NORM)
        n = len(gradient)
        if not n:
            yield from self._from_loss(view)
            return
        case = Suspicion("gradient-spike")
        values, steps = gradient.values, gradient.steps
        base = stats.running_median(values, 20)
        typical = stats.median(values)
        ratios = [v / max(b, 0.1 * typical, 1e-9) for v, b in zip(values, base, strict=True)]
        worst = max(range(n), key=lambda i: (ratios[i], values[i]))
        spikes = [i for i in range(n) if ratios[i] >= _SPIKE]
        top = max(range(n), key=values.__getitem__)
        absurd = 5.0 * stats.ramp(stats.log10(max(values[top], 1e-12)), 2.7, 4.5)
        case.add(absurd * (1 - 0.7 * view.course.learned), "gradient-absurd", value=values[top])
        case.first_step = steps[top]
        if spikes:
            case.first_step = steps[spikes[0]] if values[top] < 1e4 else steps[top]
            case.add(
                1.0 * stats.ramp(stats.log10(ratios[worst]), 1, 2.5),
                "gradient-spiked",
                factor=ratios[worst],
                step=steps[worst],
            )
            harm = max(aftermath(view, steps[i]) for i in _worst_few(spikes, ratios))
            case.add(3.5 * harm * (1 - 0.6 * view.course.learned), "harm-after-spike", step=steps[worst])
            if n >= 30 and len(spikes) > 0.03 * n:
                case.add(1.2 * stats.ramp(len(spikes) / n, 0.03, 0.1), "gradient-spikes-often", count=len(spikes))
            if harm < 0.3 and values[top] < 1e3:
                case.add(-1.0, "no-harm-after-spike")
                if len(spikes) <= max(2, 0.03 * n):
                    case.severity = "info"
        self._growth(case, view, gradient)
        case.add(-2.5 * view.course.learned, "reward-rises")
        case.show(gradient, *(steps[i] for i in sorted({max(0, worst - 1), worst, top, n - 1})))
        yield case

    def _from_loss(self, view: View) -> Iterator[Suspicion]:
        """Without gradients in the log: a loss that leaves its own range by orders of magnitude."""
        loss = view.series(metric.LOSS, "policy_loss")
        if len(loss) < 4:
            return
        size = [abs(v) for v in loss.values]
        # A loss of exactly 0 is a batch without contrast, and no measure of the others.
        early = [v for v in size[: max(2, len(size) // 2)] if v > 0]
        usual, top = stats.median(early), max(size)
        case = Suspicion("gradient-spike", first_step=loss.steps[size.index(top)])
        if top > 10:
            case.add(
                3.6 * stats.ramp(stats.log10(top / max(usual, 1e-3)), 2, 4), "loss-exploded", early=usual, late=top
            )
            case.add(-2.5 * view.course.learned, "reward-rises")
            yield case.show(loss, loss.steps[0], loss.steps[size.index(top)], loss.steps[-1])

    def _growth(self, case: Suspicion, view: View, gradient: Series) -> None:
        n = len(gradient)
        if n < 4:
            if n >= 2 and gradient.values[-1] > 100 * gradient.values[0] and gradient.values[-1] > 100:
                case.add(2.5, "gradient-grew", early=gradient.values[0], late=gradient.values[-1])
            return
        m = stats.edge(n, 0.12)
        early, late = stats.median(gradient.values[: 2 * m]), stats.median(gradient.values[-m:])
        if late > 2 and early > 0:
            grown = stats.ramp(stats.log10(late / early), 0.8, 1.5)
            case.add(2.6 * grown, "gradient-grew", early=early, late=late)
            case.add(2.0 * grown * view.course.lost, "reward-falls", value=view.course.reward.late)


def _worst_few(spikes: list[int], ratios: list[float]) -> list[int]:
    return sorted(spikes, key=lambda i: -ratios[i])[:5]


class ZeroGradient:
    """Groups have contrast, yet no gradient arrives: a mask, a detached tensor, a weight of zero."""

    codes = ("zero-gradient-despite-signal",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Compare gradient and contrast row by row."""
        gradient, dead, std = view.series(metric.GRAD_NORM), view.dead, view.series(metric.REWARD_STD)
        if not len(gradient):
            return
        # Differences over a whole batch say nothing of differences within its groups.
        within = dead.name in (metric.ZERO_STD, metric.REWARD_STD)
        contrast = {step: v < 0.5 for step, v in zip(dead.steps, dead.values, strict=True) if within}
        spread = {step: v > 1e-6 for step, v in zip(std.steps, std.values, strict=True)}
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
        tiny = [step for step, v in rows if v <= 2e-5]
        share = len(zero) / len(rows)
        case = Suspicion("zero-gradient-despite-signal", setup=True)
        n = len(rows)
        certainty = {1: 0.62, 2: 0.7}.get(n, 1.0)
        case.add(5.5 * certainty * stats.ramp(share, 0.7, 0.95), "gradient-zero", rows=len(zero), of=n)
        if share < 0.7:
            case.add(3.2 * certainty * stats.ramp(len(tiny) / n, 0.8, 0.95), "gradient-tiny", rows=len(tiny), of=n)
        if not len(view.history.series(metric.ZERO_STD)):
            case.add(-0.8 if case.clues else 0.0, "contrast-not-measured")
        case.add(-3.0 * view.course.learned if case.clues else 0.0, "reward-rises")
        hits = zero or tiny
        if hits:
            case.first_step = hits[0]
            case.show(gradient, hits[0], hits[-1]).show(std, hits[0]).show(dead, hits[0])
            yield case
