"""Distance to the reference."""

from __future__ import annotations

from collections.abc import Iterator

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Candidate, Tuned, View
from levelhead.diagnosis.history import Series
from levelhead.diagnosis.trend import crossing


class KlDivergence(Tuned):
    """Distance to the reference: out of hand, or slowly growing with nothing to show for it."""

    codes = ("kl-blowup", "reference-drift")

    def examine(self, view: View) -> Iterator[Candidate]:
        """Judge the level against nats that a policy can afford, and the growth against its own beginning."""
        kl = view.series(metric.KL)
        if len(kl) < 2:
            if len(kl) and kl.values[0] > 1:
                case = Candidate("kl-blowup", first_step=kl.steps[0], setup=True).show(kl, kl.steps[0])
                size = stats.log10(kl.values[0])
                weight = self.FIRST_ROW_WEIGHT * stats.ramp(
                    size, *self.FIRST_ROW_RANGE
                ) + self.FIRST_ROW_FAR_WEIGHT * stats.ramp(size, *self.FIRST_ROW_FAR_RANGE)
                yield case.add(weight, "kl-high", late=kl.values[0])
            return
        m = stats.edge(len(kl))
        late = stats.median(kl.values[-m:])
        early = stats.median(kl.values[: max(2, m)])
        growth = stats.ratio(late, max(min(early, kl.values[0] if kl.values[0] > 0 else early), self.LEAST_KL))
        yield self._blowup(view, kl, late, growth)
        yield self._drift(view, kl, late, growth)

    def _blowup(self, view: View, kl: Series, late: float, growth: float) -> Candidate:
        reward_trend = view.reward_trend
        case = Candidate("kl-blowup")
        level = max(late, 1e-9)
        self.argue(case, "kl-high", stats.log10(level), late=late)
        if late > self.GROWTH_FROM:
            case.add(1.0 * stats.ramp(stats.log10(growth), *self.KL_GREW_RANGE), "kl-grew", factor=growth)
        self.argue(case, "kl-beyond-reason", stats.log10(level), late=late)
        torn = 0.0
        jumps = [i for i, v in enumerate(kl.values) if v > max(1.0, self.JUMP * stats.median(kl.values))]
        if len(jumps) >= 2 and len(jumps) > self.JUMP_SHARE * len(kl):
            # Tokens of hundreds of nats are torn away, however well the others do.
            torn = stats.ramp(stats.log10(max(kl.values)), *self.TORN_RANGE)
            case.add(
                self.KL_JUMPS_WEIGHT * (1 - reward_trend.learned * (1 - torn)),
                "kl-jumps",
                count=len(jumps),
                value=max(kl.values),
            )
            case.show(kl, *(kl.steps[i] for i in jumps[: self.JUMPS_SHOWN]))
        gradient = view.series(metric.GRAD_NORM)
        if len(gradient) >= self.ROWS_OF_GRADIENT and late > self.TAIL_FROM:
            tail = stats.quantile(gradient.values, self.TAIL_QUANTILE) / max(stats.median(gradient.values), 1e-12)
            self.argue(case, "gradients-heavy-tailed", tail, factor=tail)
        if late > self.FALL_FROM:
            case.add_fall(self.REWARD_FALLS_WEIGHT, reward_trend)
        if late > 1 and reward_trend.has_signal and reward_trend.learned < self.NOT_LEARNED:
            case.add(self.REWARD_FLAT_WEIGHT, "reward-flat")
        case.add(
            self.REWARD_RISES_WEIGHT
            * reward_trend.learned
            * (1 - max(torn, stats.ramp(late, *self.REWARD_RISES_RANGE))),
            "reward-rises",
        )
        peak = max(kl.values)
        if (
            view.from_start
            and kl.values[0] >= self.FIRST_OF_LATE * max(late, stats.quantile(kl.values, self.LATE_QUANTILE))
            and kl.values[0] > self.FIRST_LEAST
        ):
            case.add(self.KL_HIGH_FROM_THE_FIRST_ROW_WEIGHT, "kl-high-from-the-first-row", first=kl.values[0])
        case.first_step = (
            kl.steps[jumps[0]] if len(jumps) >= 2 else crossing(kl, max(self.BAD_FROM, self.BAD_OF_LATE * late))
        )
        return case.show(kl, kl.steps[0], case.first_step, kl.steps[kl.values.index(peak)], kl.steps[-1])

    def _drift(self, view: View, kl: Series, late: float, growth: float) -> Candidate:
        reward_trend = view.reward_trend
        case = Candidate("reference-drift")
        if len(kl) >= self.ROWS_OF_DRIFT and stats.kendall_z(kl.values) > self.DRIFT_SURE:
            self.argue(case, "kl-climbs", late, late=late)
            self.argue(case, "kl-grew", stats.log10(growth), factor=growth)
            if reward_trend.has_signal and reward_trend.learned < self.NOT_LEARNED:
                case.add(self.REWARD_FLAT_WEIGHT, "reward-flat")
            case.add(self.DRIFT_REWARD_RISES_WEIGHT * reward_trend.learned, "reward-rises")
        case.first_step = crossing(kl, max(self.DRIFT_BAD_FROM, self.DRIFT_BAD_OF_LATE * late))
        return case.show(kl, kl.steps[0], kl.steps[-1])
