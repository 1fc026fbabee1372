"""Trainer and sampler that are not one policy: engines that disagree, and weights that are stale."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Candidate, Tuned, View
from levelhead.diagnosis.history import Series
from levelhead.diagnosis.trend import crossing, ends


@dataclass(frozen=True, slots=True)
class _Gauge:
    """How one signal tells trainer and sampler apart: harmless up to ``low``, plain from ``high`` on."""

    metric: str
    low: float
    high: float
    weight: float
    log: bool = False

    # Set by hand on the development logs (docs/doctor.md), unless a line says otherwise.
    # Weights are log-odds; a range begins where nothing counts and ends where all does.
    BEYOND_WEIGHT = 0.4  # strength that a reading far beyond the upper mark adds,
    BEYOND_RANGE = (0, stats.ln(5))  # logarithm of how far

    def strength(self, value: float) -> float:
        """0 to 1 between the two marks, and up to 1.4 far beyond the upper one."""
        beyond = self.BEYOND_WEIGHT * stats.ramp(stats.ln(max(value, 1e-12) / self.high), *self.BEYOND_RANGE)
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


class LogprobMismatch(Tuned):
    """Trainer and sampler give the drawn tokens different probabilities: importance ratios mean nothing."""

    codes = ("logprob-mismatch",)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Read the gauges of both engines, then what a first row of KL, ratio and clipping says."""
        case = Candidate("logprob-mismatch")
        kl = view.history.series(metric.KL)
        hits = [hit for gauge in _GAUGES if (hit := self._gauge(view, gauge))]
        for series, gauge, strength, level in sorted(hits, key=lambda hit: -hit[1].weight * hit[2])[:1]:
            case.add(gauge.weight * strength, "engines-differ", metric=series.name, value=level)
            case.setup = gauge.strength(series.values[0]) > self.SETUP_STRENGTH
            threshold = gauge.low + self.BAD_FROM * (gauge.high - gauge.low)
            case.first_step = series.steps[0] if case.setup else crossing(series, threshold)
            case.show(series, series.steps[0], series.steps[-1])
            clipped = self._moved(view)
            case.add(
                self.CLIPPED_MUCH_WEIGHT * clipped, "clipped-much", share=stats.median(view.series(_CLIPPED).values)
            )
            lag = view.series(metric.OFF_POLICY)
            if len(lag) and lag.values[0] < 1 and gauge.strength(series.values[0]) == 0:
                # They agreed on rollouts of their own weights; what came later is the policy's own movement.
                level = stats.median(lag.values)
                self.argue(case, "agreed-on-policy", level, updates=level)
        self._beyond_rounding(case, view)
        self._ratio(case, view)
        self._correlation(case, view)
        self._negative(case, kl)
        self._first_row(case, view)
        if case.evidence:
            # A far reference slows learning; it does not always prevent it.
            far = (
                stats.ramp(stats.log10(max(kl.values[0], 1e-9)), *self.KL_FAR_RANGE) if len(kl) and case.setup else 0.0
            )
            # What is measured on both engines stays true however well the run goes; it is then no more than a warning.
            measured = max((strength for *_, strength, _ in hits), default=0.0) >= self.MEASURED
            if measured and view.reward_trend.learned > self.HELD_OUT_LEARNED:
                case.severity = "warning"
            against = self.RISES_AGAINST_SETUP * max(far, float(measured))
            case.add(self.REWARD_RISES_WEIGHT * (1 - against) * view.reward_trend.learned, "reward-rises")
            if not measured and len(view.reward_trend.held_out) and view.reward_trend.learned > self.HELD_OUT_LEARNED:
                case.add(-1.0, "held-out-rises")
            yield case

    def _moved(self, view: View) -> float:
        """0 to 1: how well many clipped ratios (which compare policies, not engines) explain a difference."""
        clipped = view.series(_CLIPPED)
        return (
            stats.ramp(stats.median(clipped.values), *self.MOVED_RANGE) if len(clipped) >= self.ROWS_OF_CLIPPED else 0.0
        )

    def _gauge(self, view: View, gauge: _Gauge) -> tuple[Series, _Gauge, float, float] | None:
        series = view.history.series(gauge.metric)
        if not len(series):
            return None
        early, late = ends(series)
        level = max(early, late)
        return (series, gauge, gauge.strength(level), level) if gauge.strength(level) > 0 else None

    def _beyond_rounding(self, case: Candidate, view: View) -> None:
        """Our own trainer knows what the rounding of its precision explains: one row beyond it is a bug."""
        beyond = view.history.series(metric.BEYOND_ROUNDING)
        rows = [step for step, value in zip(beyond.steps, beyond.values, strict=True) if value > 0]
        if rows:
            share = len(rows) / len(beyond)
            case.add(
                self.BEYOND_ROUNDING_WEIGHT + stats.ramp(share, *self.BEYOND_ROUNDING_RANGE),
                "beyond-rounding",
                value=max(beyond.values),
                share=share,
            )
            case.setup = case.setup or rows[0] == beyond.steps[0]
            case.first_step = rows[0] if case.first_step is None else min(rows[0], case.first_step)
            case.show(beyond, rows[0], rows[-1])

    def _ratio(self, case: Candidate, view: View) -> None:
        ratio = view.history.series(metric.IMPORTANCE_MEAN)
        if not len(ratio):
            return
        late = stats.median(ratio.values)
        away = abs(stats.ln(max(late, 1e-12)))
        weight = self.RATIO_WEIGHT * stats.ramp(away, *self.RATIO_RANGE) + self.RATIO_FAR_WEIGHT * stats.ramp(
            away, *self.RATIO_FAR_RANGE
        )
        if weight:
            case.add(weight, "ratio-away-from-one", value=late)
            case.first_step = ratio.steps[0] if case.first_step is None else case.first_step
            case.show(ratio, ratio.steps[-1])

    def _correlation(self, case: Candidate, view: View) -> None:
        correlation = view.history.series("mismatch/correlation")
        if len(correlation):
            worst = min(ends(correlation))
            weight = self.CORRELATION_WEIGHT * stats.ramp(worst, *self.CORRELATION_RANGE)
            if weight:
                case.add(weight, "engines-do-not-correlate", value=worst)
                case.first_step = (
                    crossing(correlation, self.CORRELATION_BAD, above=False)
                    if case.first_step is None
                    else case.first_step
                )
                case.show(correlation, correlation.steps[-1])

    def _negative(self, case: Candidate, kl: Series) -> None:
        """The mean of log(policy/reference) over the policy's own draws is a KL, and no KL is negative beyond noise."""
        if len(kl) < self.ROWS_OF_KL:
            return
        late = stats.median(kl.values[-max(self.ROWS_OF_KL, len(kl) // self.ROWS_OF_KL) :])
        weight = self.NEGATIVE_WEIGHT * stats.ramp(stats.log10(max(-late, 1e-9)), *self.NEGATIVE_RANGE)
        if weight:
            case.add(weight, "kl-negative", late=late)
            if case.first_step is None:
                case.first_step = crossing(kl, self.NEGATIVE_BAD * late, above=False)
            case.show(kl, kl.steps[0], kl.steps[-1])

    def _first_row(self, case: Candidate, view: View) -> None:
        """Before the first update policy, sampler and reference are one: KL 0, ratio 1, nothing clipped."""
        kl = view.history.series(metric.KL)
        if not view.from_start:
            return
        if 1 <= len(kl) < self.ROWS_OF_FIRST and kl.values[0] >= self.FIRST_OF_LATER * max(kl.values):
            # So few rows may also be an excerpt from later.
            weight = self.FEW_FIRST_WEIGHT * stats.ramp(stats.log10(max(kl.values[0], 1e-9)), *self.FEW_FIRST_RANGE)
            weight *= stats.ramp(view.first_window, *self.WINDOW_RANGE)
            if weight:
                case.add(weight, "kl-high-from-the-first-row", first=kl.values[0])
                self._at_first(case, kl)
        if len(kl) >= self.ROWS_OF_FIRST and kl.values[0] > self.FIRST_LEAST:
            later = stats.quantile(kl.values[1:], self.LATER_QUANTILE)
            if kl.values[0] >= self.FIRST_OF_LATER * later:
                weight = self.FIRST_WEIGHT + 2.0 * stats.ramp(stats.log10(kl.values[0]), *self.FIRST_RANGE)
                # The first row of a coarse log is a mean over updates in which the policy may have moved already.
                weight *= stats.ramp(view.first_window, *self.WINDOW_RANGE)
                case.add(weight, "kl-high-from-the-first-row", first=kl.values[0])
                self._at_first(case, kl)
        drift = view.history.series("ppo_kl")
        if len(drift) and abs(drift.values[0]) > self.OLD_AND_NEW:
            self.argue(case, "policy-moved-before-training", abs(drift.values[0]), value=drift.values[0])
            self._at_first(case, drift)
        clipped = view.history.series(_CLIPPED)
        if len(clipped) and clipped.values[0] > self.CLIPPED_FROM:
            case.add(self.CLIPPED_AT_ONCE_WEIGHT, "clipped-at-once", share=clipped.values[0])
            self._at_first(case, clipped)

    def _at_first(self, case: Candidate, series: Series) -> None:
        case.setup = True
        case.first_step = series.steps[0]
        case.show(series, series.steps[0])


class StalePolicy(Tuned):
    """Rollouts come from a policy many updates old."""

    codes = ("stale-policy",)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Judge the logged lag, and a mismatch that was absent at first and grows with training."""
        case = Candidate("stale-policy")
        level = recent = 0.0
        lag = view.series(metric.OFF_POLICY)
        if len(lag):
            level = stats.median(lag.values[-stats.edge(len(lag), self.LAG_SHARE) :])
            self.argue(case, "policy-lag", level, updates=level)
            case.first_step = crossing(lag, self.LAG_BAD)
            case.show(lag, lag.steps[-1])
            recent = self.RECENT_WEIGHT * stats.ramp(level, *self.RECENT_RANGE)
        for gauge in _GAUGES:
            series = view.history.series(gauge.metric)
            if len(series) >= self.ROWS_OF_GROWTH:
                early, late = ends(series)
                if late > gauge.low and late > self.GREW * max(early, 1e-9):
                    case.add(
                        self.MISMATCH_GROWS_WEIGHT * gauge.strength(late),
                        "mismatch-grows",
                        metric=gauge.metric,
                        early=early,
                        late=late,
                    )
                    case.first_step = case.first_step or crossing(series, gauge.low)
                    case.show(series, series.steps[0], series.steps[-1])
                    break
        clipped = view.series(_CLIPPED)
        if len(clipped) >= self.ROWS_OF_CLIPPED:
            share = stats.median(clipped.values)
            differs = max(
                (g.strength(stats.median(s.values)) for g in _GAUGES if len(s := view.series(g.metric))), default=0.0
            )
            weight = self.CLIPPED_WEIGHT * stats.ramp(share, *self.CLIPPED_RANGE) * min(1.0, differs)
            case.add(weight, "clipped-much", share=share)
            if weight:
                case.first_step = clipped.steps[0] if case.first_step is None else case.first_step
                case.show(clipped, clipped.steps[0], clipped.steps[-1])
        if case.evidence:
            case.add(recent, "policy-recent", updates=level)
            case.add(1.0 * view.reward_trend.lost, "reward-falls", value=view.reward_trend.reward.late)
            case.add(self.REWARD_RISES_WEIGHT * view.reward_trend.learned, "reward-rises")
            yield case
