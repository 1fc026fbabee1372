"""Faults of the set-up, visible at the first row: two engines that disagree, stale weights, templates, group size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Suspicion, View, constant, crossing, ends
from levelhead.diagnosis.history import Series


@dataclass(frozen=True, slots=True)
class _Gauge:
    """How one signal tells trainer and sampler apart: harmless up to ``low``, plain from ``high`` on."""

    metric: str
    low: float
    high: float
    weight: float
    log: bool = False

    def strength(self, value: float) -> float:
        """0 to 1 between the two marks, and up to 1.4 far beyond the upper one."""
        beyond = 0.4 * stats.ramp(stats.ln(max(value, 1e-12) / self.high), 0, stats.ln(5))
        if not self.log:
            return stats.ramp(value, self.low, self.high) + beyond
        return stats.ramp(stats.ln(max(value, 1e-12)), stats.ln(self.low), stats.ln(self.high)) + beyond


_CLIPPED = metric.CLIP_REGION

# Healthy bf16 runs with a separate inference engine show about 0.005 to 0.03 nats per token, probability differences
# of 0.002 to 0.02 and a mean multiplicative error under 1.05 (NeMo-RL's own warning level).
_GAUGES = (
    _Gauge(metric.LOGP_DIFFERENCE_MEAN, 0.05, 0.3, 3.6),
    _Gauge("mismatch/kl", 0.03, 0.4, 3.6, log=True),
    _Gauge("mismatch/prob_diff_mean", 0.02, 0.1, 3.6),
    _Gauge("mismatch/mult_prob_error", 1.05, 1.3, 3.6),
)


class LogprobMismatch:
    """Trainer and sampler give the drawn tokens different probabilities: importance ratios mean nothing."""

    codes = ("logprob-mismatch",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Read the gauges of both engines, then what a first row of KL, ratio and clipping says."""
        case = Suspicion("logprob-mismatch")
        kl = view.history.series(metric.KL)
        hits = [hit for gauge in _GAUGES if (hit := self._gauge(view, gauge))]
        for series, gauge, strength, level in sorted(hits, key=lambda hit: -hit[1].weight * hit[2])[:1]:
            case.add(gauge.weight * strength, "engines-differ", metric=series.name, value=level)
            case.setup = gauge.strength(series.values[0]) > 0.4
            threshold = gauge.low + 0.3 * (gauge.high - gauge.low)
            case.first_step = series.steps[0] if case.setup else crossing(series, threshold)
            case.show(series, series.steps[0], series.steps[-1])
            clipped = self._moved(view)
            case.add(-3.0 * clipped, "clipped-much", share=stats.median(view.series(_CLIPPED).values))
            lag = view.series(metric.OFF_POLICY)
            if len(lag) and lag.values[0] < 1 and gauge.strength(series.values[0]) == 0:
                # They agreed on rollouts of their own weights; what came later is the policy's own movement.
                level = stats.median(lag.values)
                case.add(-3.0 * stats.ramp(level, 0, 1), "agreed-on-policy", updates=level)
        self._beyond_rounding(case, view)
        self._ratio(case, view)
        self._correlation(case, view)
        self._negative(case, kl)
        self._first_row(case, view)
        if case.clues:
            # A far reference slows learning; it does not always prevent it.
            far = stats.ramp(stats.log10(max(kl.values[0], 1e-9)), 0, 0.7) if len(kl) and case.setup else 0.0
            case.add(-2.2 * (1 - 0.5 * far) * view.course.learned, "reward-rises")
            if len(view.course.held_out) and view.course.learned > 0.5:
                case.add(-1.0, "held-out-rises")
            yield case

    def _moved(self, view: View) -> float:
        """0 to 1: how well many clipped ratios (which compare policies, not engines) explain a difference."""
        clipped = view.series(_CLIPPED)
        return stats.ramp(stats.median(clipped.values), 0.02, 0.1) if len(clipped) >= 3 else 0.0

    def _gauge(self, view: View, gauge: _Gauge) -> tuple[Series, _Gauge, float, float] | None:
        series = view.history.series(gauge.metric)
        if not len(series):
            return None
        early, late = ends(series)
        level = max(early, late)
        return (series, gauge, gauge.strength(level), level) if gauge.strength(level) > 0 else None

    def _beyond_rounding(self, case: Suspicion, view: View) -> None:
        """Our own trainer knows what the rounding of its precision explains: one row beyond it is a bug."""
        beyond = view.history.series(metric.BEYOND_ROUNDING)
        rows = [step for step, value in zip(beyond.steps, beyond.values, strict=True) if value > 0]
        if rows:
            share = len(rows) / len(beyond)
            case.add(4.5 + stats.ramp(share, 0.0, 0.5), "beyond-rounding", value=max(beyond.values), share=share)
            case.setup = case.setup or rows[0] == beyond.steps[0]
            case.first_step = rows[0] if case.first_step is None else min(rows[0], case.first_step)
            case.show(beyond, rows[0], rows[-1])

    def _ratio(self, case: Suspicion, view: View) -> None:
        ratio = view.history.series(metric.IMPORTANCE_MEAN)
        if not len(ratio):
            return
        late = stats.median(ratio.values)
        away = abs(stats.ln(max(late, 1e-12)))
        weight = 1.6 * stats.ramp(away, 0.4, 2) + 1.6 * stats.ramp(away, 3, 8)
        if weight:
            case.add(weight, "ratio-away-from-one", value=late)
            case.first_step = ratio.steps[0] if case.first_step is None else case.first_step
            case.show(ratio, ratio.steps[-1])

    def _correlation(self, case: Suspicion, view: View) -> None:
        correlation = view.history.series("mismatch/correlation")
        if len(correlation):
            worst = min(ends(correlation))
            weight = 3.2 * stats.ramp(worst, 0.97, 0.85)
            if weight:
                case.add(weight, "engines-do-not-correlate", value=worst)
                case.first_step = (
                    crossing(correlation, 0.95, above=False) if case.first_step is None else case.first_step
                )
                case.show(correlation, correlation.steps[-1])

    def _negative(self, case: Suspicion, kl: Series) -> None:
        """The mean of log(policy/reference) over the policy's own draws is a KL, and no KL is negative beyond noise."""
        if len(kl) < 3:
            return
        late = stats.median(kl.values[-max(3, len(kl) // 3) :])
        weight = 3.6 * stats.ramp(stats.log10(max(-late, 1e-9)), -1, 0)
        if weight:
            case.add(weight, "kl-negative", late=late)
            if case.first_step is None:
                case.first_step = crossing(kl, 0.3 * late, above=False)
            case.show(kl, kl.steps[0], kl.steps[-1])

    def _first_row(self, case: Suspicion, view: View) -> None:
        """Before the first update policy, sampler and reference are one: KL 0, ratio 1, nothing clipped."""
        kl = view.history.series(metric.KL)
        if not view.from_start:
            return
        if 1 <= len(kl) < 3 and kl.values[0] >= 0.6 * max(kl.values):
            # So few rows may also be an excerpt from later.
            weight = 3.2 * stats.ramp(stats.log10(max(kl.values[0], 1e-9)), -0.7, 0.4)
            weight *= stats.ramp(view.first_window, 30, 5)
            if weight:
                case.add(weight, "kl-high-from-the-first-row", first=kl.values[0])
                self._at_first(case, kl)
        if len(kl) >= 3 and kl.values[0] > 0.05:
            later = stats.quantile(kl.values[1:], 0.9)
            if kl.values[0] >= 0.6 * later:
                weight = 1.6 + 2.0 * stats.ramp(stats.log10(kl.values[0]), -1.3, 0.3)
                # The first row of a coarse log is a mean over updates in which the policy may have moved already.
                weight *= stats.ramp(view.first_window, 30, 5)
                case.add(weight, "kl-high-from-the-first-row", first=kl.values[0])
                self._at_first(case, kl)
        drift = view.history.series("ppo_kl")
        if len(drift) and abs(drift.values[0]) > 0.05:
            case.add(
                2.0 * stats.ramp(abs(drift.values[0]), 0.05, 0.3), "policy-moved-before-training", value=drift.values[0]
            )
            self._at_first(case, drift)
        clipped = view.history.series(_CLIPPED)
        if len(clipped) and clipped.values[0] > 0.3:
            case.add(1.5, "clipped-at-once", share=clipped.values[0])
            self._at_first(case, clipped)

    def _at_first(self, case: Suspicion, series: Series) -> None:
        case.setup = True
        case.first_step = series.steps[0]
        case.show(series, series.steps[0])


class StalePolicy:
    """Rollouts come from a policy many updates old."""

    codes = ("stale-policy",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Judge the logged lag, and a mismatch that was absent at first and grows with training."""
        case = Suspicion("stale-policy")
        level = recent = 0.0
        lag = view.series(metric.OFF_POLICY)
        if len(lag):
            level = stats.median(lag.values[-stats.edge(len(lag), 0.3) :])
            case.add(3.6 * stats.ramp(level, 3, 16), "policy-lag", updates=level)
            case.first_step = crossing(lag, 3)
            case.show(lag, lag.steps[-1])
            recent = -1.5 * stats.ramp(level, 3, 1)
        for gauge in _GAUGES:
            series = view.history.series(gauge.metric)
            if len(series) >= 6:
                early, late = ends(series)
                if late > gauge.low and late > 4 * max(early, 1e-9):
                    case.add(1.8 * gauge.strength(late), "mismatch-grows", metric=gauge.metric, early=early, late=late)
                    case.first_step = case.first_step or crossing(series, gauge.low)
                    case.show(series, series.steps[0], series.steps[-1])
                    break
        clipped = view.series(_CLIPPED)
        if len(clipped) >= 3:
            share = stats.median(clipped.values)
            differs = max(
                (g.strength(stats.median(s.values)) for g in _GAUGES if len(s := view.series(g.metric))), default=0.0
            )
            weight = 3.6 * stats.ramp(share, 0.02, 0.1) * min(1.0, differs)
            case.add(weight, "clipped-much", share=share)
            if weight:
                case.first_step = clipped.steps[0] if case.first_step is None else case.first_step
                case.show(clipped, clipped.steps[0], clipped.steps[-1])
        if case.clues:
            case.add(recent, "policy-recent", updates=level)
            case.add(1.0 * view.course.lost, "reward-falls", value=view.course.reward.late)
            case.add(-3.0 * view.course.learned, "reward-rises")
            yield case


class TemplateMismatch:
    """The policy answers, but never in the form that is asked for: prompt, template and parser disagree."""

    codes = ("template-mismatch",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Look for a form reward or validity at zero throughout while outcomes are right or lengths look normal."""
        case = Suspicion("template-mismatch", setup=True)
        valid = view.series(metric.VALIDITY)
        if len(valid) >= 2 and max(valid.values) <= 0.15:
            hardly = stats.ramp(max(valid.values), 0.15, 0.05)
            case.add(
                (3.6 if len(valid) >= 4 else 2.4) * hardly, "never-valid", rows=len(valid), share=max(valid.values)
            )
            case.first_step = valid.steps[0]
            case.show(valid, valid.steps[0], valid.steps[-1])
        right = max((max(s.values) for s in view.parts("outcome")), default=0.0)
        for part in view.parts("form"):
            if len(part) >= 4 and constant(part.values) and abs(part.values[0]) < 1e-9 and right > 0.1:
                case.add(2.4, "form-never-rewarded", metric=part.name)
                case.first_step = part.steps[0]
                case.show(part, part.steps[0], part.steps[-1])
                break
        cut, reward = view.series(metric.CLIPPED_RATIO), view.series(metric.REWARD, view.course.source)
        if len(cut) >= 3 and len(reward) >= 3 and cut.values[0] >= 0.95 and max(reward.values) <= 0.02:
            case.add(1.2, "never-ends-and-never-right")
            case.first_step = cut.steps[0]
            case.show(cut, cut.steps[0])
        if case.clues:
            case.add(-3.0 * view.course.learned, "reward-rises")
            yield case


class GroupSize:
    """Groups too small for their own baseline: two rollouts give advantages of two values."""

    codes = ("advantage-two-valued", "group-size-too-small")

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Read the advantages' extremes, which a group of two pins to +-0.707 (sample std) or +-1 (population)."""
        high, low = view.series("advantages/max"), view.series("advantages/min")
        size = view.series("group_size")
        group_size = size.values[-1] if len(size) else None
        pinned = None
        if len(high) and len(high) == len(low):
            pairs = [(a, b) for a, b in zip(high.values, low.values, strict=True) if a > 1e-6]
            for value in (math.sqrt(0.5), 1.0):
                hits = sum(abs(a - value) < 0.012 and abs(b + value) < 0.012 for a, b in pairs)
                if len(pairs) >= 3 and hits >= 0.8 * len(pairs):
                    pinned = value
        case = Suspicion("advantage-two-valued", setup=True)
        if pinned is not None:
            case.add(3.4, "advantages-pinned", value=pinned)
            case.first_step = high.steps[0]
            case.show(high, high.steps[0], high.steps[-1]).show(low, low.steps[-1])
        small = Suspicion("group-size-too-small", setup=True, first_step=view.history.first_step)
        if group_size is not None and group_size <= 3:
            small.add(2.6, "group-size", size=group_size)
        elif pinned is not None:
            small.add(2.0, "advantages-pinned", value=pinned)
        if self._without_baseline(view):
            small.add(4.2, "advantages-are-rewards")
            small.show(high, view.history.first_step).show(view.series("reward/max"), view.history.first_step)
        for suspicion in (case, small):
            if suspicion.clues:
                dead = view.dead
                if len(dead):
                    share = stats.mean(dead.values)
                    suspicion.add(1.2 * stats.ramp(share, 0.3, 0.8), "dead-share", share=share)
                suspicion.add(1.5 * view.course.lost, "reward-falls", value=view.course.reward.late)
                suspicion.add(-3.0 * view.course.learned, "reward-rises")
                yield suspicion

    def _without_baseline(self, view: View) -> bool:
        """Whether advantages are the rewards themselves: a mean over a group of one takes nothing away."""
        for name in ("max", "min"):
            reward, advantage = view.series(metric.REWARD_BY_TASK.of(name)), view.series(f"advantages/{name}")
            if len(reward) < 3 or reward.steps != advantage.steps or constant(reward.values):
                return False
            if any(abs(a - b) > 0.002 for a, b in zip(advantage.values, reward.values, strict=True)):
                return False
        return True
