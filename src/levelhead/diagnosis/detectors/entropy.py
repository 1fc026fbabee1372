"""The policy's spread: entropy that collapses, explodes, or follows its bonus the wrong way."""

from __future__ import annotations

import math
from collections.abc import Iterator

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Candidate, Tuned, View
from levelhead.diagnosis.history import Series
from levelhead.diagnosis.trend import crossing, ends

_FLOOR = 1e-4  # nats below which one entropy is as good as another; set by hand
_OF_THE_FALL = ("entropy-fell", "entropy-low", "entropy-fell-fast")
"""Arguments that a lower temperature would explain as well."""
_CERTAIN = 4  # standard errors by which a term must lie beside 0 to be told from it


class EntropyCollapse(Tuned):
    """Entropy falls for good while the reward does not rise: the policy stops exploring before it has learnt."""

    codes = ("entropy-collapse",)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Weigh depth, speed and level of the fall against what the reward made of it."""
        entropy = view.entropy
        # Labels are meant to narrow the policy.
        if not len(entropy) or view.supervised:
            return
        reward_trend = view.reward_trend
        case = Candidate("entropy-collapse")
        early, late = ends(entropy)
        fall = stats.ln(max(early, _FLOOR) / max(late, _FLOOR))
        if fall > self.FALL_THAT_COUNTS and len(entropy) >= self.ROWS_OF_A_FALL:
            self.argue(case, "entropy-fell", fall, early=early, late=late)
            self.argue(case, "entropy-low", -stats.ln(max(late, _FLOOR)), late=late)
            self._speed(case, entropy)
            if not reward_trend.reward.n and not reward_trend.held_out:
                self.argue(case, "reward-not-logged", fall)
                case.severity = "warning"
        else:
            self.argue(case, "entropy-low", -stats.ln(max(late, _FLOOR)), late=late, by="LOW_ONLY")
            self._contrast_left(case, view)
        if case.evidence:
            self._company(case, view)
        rises = max(reward_trend.learned, reward_trend.second_half_rose)
        case.add(self.REWARD_RISES_WEIGHT * rises, "reward-rises")
        case.add_near_top(self.REWARD_NEAR_TOP_WEIGHT, reward_trend)
        if reward_trend.holds > self.HOLDS:
            # What pays has been learnt: a policy that is sure of it need not explore.
            case.severity = "warning"
            case.add(
                self.REWARD_HOLDS_WEIGHT * reward_trend.holds * (1 - reward_trend.learned),
                "reward-holds",
                value=reward_trend.reward.late,
            )
        self._cooled(case, view, fall)
        self._stalled(case, view, late)
        level = max(early / self.FALLEN_TO, late * self.ABOVE_THE_END) if fall > self.FALL_THAT_COUNTS else math.inf
        case.first_step = crossing(entropy, level, above=False) if level < math.inf else entropy.steps[0]
        case.show(entropy, entropy.steps[0], case.first_step, entropy.steps[-1])
        yield case

    def _contrast_left(self, case: Candidate, view: View) -> None:
        """Where the entropy was low from the start: groups that differ as at first still explore."""
        dead = view.dead
        if len(dead) < self.ROWS_OF_CONTRAST or not case.evidence:
            return
        m = len(dead) // self.ENDS_OF_DEAD or 1
        early, late = 1 - stats.mean(dead.values[:m]), 1 - stats.mean(dead.values[-m:])
        remains = stats.ramp(late, *self.CONTRAST_LEFT_RANGE) * stats.ramp(
            stats.ratio(late, early), *self.CONTRAST_RANGE
        )
        case.add(self.CONTRAST_LEFT_WEIGHT * remains, "contrast-left", share=late)

    def _speed(self, case: Candidate, entropy: Series) -> None:
        if len(entropy) < self.ROWS_OF_SPEED:
            return
        width = max(self.LEAST_SPEED_ROWS, round(self.SPEED_SHARE * len(entropy)))
        values = [stats.ln(max(v, _FLOOR)) for v in entropy.values]
        steepest = max((a - b for a, b in zip(values, values[width:], strict=False)), default=0.0)
        self.argue(case, "entropy-fell-fast", steepest, factor=math.exp(steepest))

    def _company(self, case: Candidate, view: View) -> None:
        """What a collapse brings with it: dead groups, a reward that stays low or falls."""
        dead, reward_trend = view.dead, view.reward_trend
        if len(dead) >= self.ROWS_OF_DEAD:
            m = len(dead) // self.ENDS_OF_DEAD or 1
            early, late = stats.mean(dead.values[:m]), stats.mean(dead.values[-m:])
            if not reward_trend.near_top and reward_trend.holds <= self.HOLDS:
                self.argue(case, "dead-share-grows", late - early, early=early, late=late)
        case.add_fall(self.REWARD_FALLS_WEIGHT, reward_trend)
        if (
            reward_trend.has_signal
            and max(reward_trend.learned, reward_trend.second_half_rose) < self.NOT_LEARNED
            and max(reward_trend.near_top, reward_trend.holds) < self.HOLDS
        ):
            case.add(self.REWARD_FLAT_WEIGHT, "reward-flat")

    def _cooled(self, case: Candidate, view: View, fall: float) -> None:
        """The recipe itself draws cooler: what the temperature takes from the entropy is no collapse.

        Logits at temperature T are those of a policy 1 / T times as sharp: ln H falls about as fast as ln T, and the
        faster the narrower the policy is, twice as fast where most tokens are nearly certain.
        """
        warmth = view.series(metric.TEMPERATURE)
        if len(warmth) < 2 or fall <= 0:
            return
        early, late = ends(warmth)
        cooling = stats.ln(max(early, _FLOOR) / max(late, _FLOOR))
        explained = min(1.0, 2 * cooling / fall) if cooling > 0 else 0.0
        weight = sum(argument.weight for argument in case.evidence if argument.key in _OF_THE_FALL)
        case.add(-max(0.0, weight) * explained, "temperature-cools", early=early, late=late)

    def _stalled(self, case: Candidate, view: View, late: float) -> None:
        """A reward that rose, then stopped far from the top once entropy and contrast were spent."""
        reward, dead = view.series(metric.REWARD, view.reward_trend.source), view.dead
        n = len(reward)
        if (
            n < self.ROWS_OF_A_STALL
            or late > self.SPENT_ENTROPY
            or view.reward_trend.near_top > self.NOT_NEAR_TOP
            or len(dead) < self.DEAD_ROWS_OF_A_STALL
            or view.reward_trend.top is None
        ):
            return
        rest = reward.values[int(self.STALL_FROM * n) :]
        gain = stats.mean(rest[-len(rest) // self.STALL_PARTS :]) - stats.mean(rest[: len(rest) // self.STALL_PARTS])
        if stats.median(
            dead.values[-len(dead) // 2 :]
        ) > self.DEAD_IN_A_STALL and gain < self.STALL_NOISE * stats.noise(reward.values):
            case.add(self.STALLED_WEIGHT * view.reward_trend.learned, "stalled", value=view.reward_trend.reward.late)


class EntropyExplosion(Tuned):
    """Entropy climbs and the reward suffers: the policy dissolves into noise."""

    codes = ("entropy-explosion",)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Weigh the climb against the reward."""
        entropy = view.entropy
        if not len(entropy):
            return
        reward_trend = view.reward_trend
        early, late = ends(entropy)
        late = max(
            late, stats.quantile(entropy.values[-max(1, len(entropy) // self.NEWEST_PART) :], self.HIGH_QUANTILE)
        )
        case = Candidate("entropy-explosion")
        rise = stats.ln(max(late, _FLOOR) / max(early, _FLOOR))
        # Little entropy that has become several times as much is still little.
        noisy = stats.ramp(late, *self.NOISY_RANGE)
        weight = (
            self.ENTROPY_ROSE_WEIGHT
            * (self.ROSE_ANYWAY + self.ROSE_TO_NOISE * noisy)
            * stats.ramp(rise, *self.ENTROPY_ROSE_RANGE)
        )
        case.add(weight, "entropy-rose", early=early, late=late)
        if rise > self.RISE_THAT_COUNTS:
            self.argue(case, "entropy-rose-by", late - early, nats=late - early)
            high = max(stats.ramp(late, *self.ENTROPY_HIGH_RANGE), self._high(late))
            case.add(high, "entropy-high", late=late)
            # A reward that falls is laid to the entropy only where the entropy itself has something to say.
            if case.evidence:
                case.add_fall(self.REWARD_FALLS_WEIGHT * noisy, reward_trend)
            if case.evidence and reward_trend.has_signal and reward_trend.learned < self.NOT_LEARNED:
                case.add(self.REWARD_FLAT_WEIGHT * noisy, "reward-flat")
        else:
            # Uniform over a few hundred tokens at every position: no language is that open.
            case.add(self._high(late), "entropy-high", late=late)
        case.add(self.REWARD_RISES_WEIGHT * reward_trend.learned * self._worth(view, late), "reward-rises")
        case.first_step = crossing(entropy, early * self.RISEN_TO + self.RISEN_BY)
        case.show(entropy, entropy.steps[0], case.first_step, entropy.steps[-1])
        yield case

    def _high(self, late: float) -> float:
        """What an entropy weighs that is more than that of any language, whether it rose to that or was there."""
        more = self.HIGH_ONLY_MORE_WEIGHT * stats.ramp(late, *self.HIGH_ONLY_MORE_RANGE)
        return float(more + self.ENTROPY_HIGH_WEIGHT * stats.ramp(late, *self.HIGH_ONLY_RANGE))

    def _worth(self, view: View, late: float) -> float:
        """0 to 1: what a rise of the reward says for such an entropy; a few lucky answers in noise say little."""
        trend = view.reward_trend
        if trend.top is None or trend.top <= 0 or trend.held_out:
            return 1.0
        low = stats.ramp(trend.reward.late / trend.top, *self.LOW_REWARD_RANGE)
        return 1 - low * stats.ramp(late, *self.HIGH_ONLY_RANGE)


class EntropySign(Tuned):
    """Entropy falls faster the larger its bonus: the bonus enters with the wrong sign."""

    codes = ("entropy-sign",)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Ask the audit if it ran; else compare the fall under small and under large coefficients of the run."""
        audited = _audited(view)
        if len(audited) and stats.median(audited.values) < 0:
            value = stats.median(audited.values)
            case = Candidate("entropy-sign", first_step=audited.steps[0], setup=True)
            yield case.add(self.AUDIT_COEFFICIENT_WEIGHT, "audit-coefficient", value=value).show(
                audited, audited.steps[0]
            )
            return
        entropy, coef = view.entropy, view.series(metric.ENTROPY_COEF)
        if len(entropy) < self.ROWS_OF_SIGN or len(coef) < self.ROWS_OF_SIGN:
            return
        n = min(len(entropy), len(coef))
        e, c = entropy.values[-n:], coef.values[-n:]
        # By its logarithm, as long as there is something left to fall.
        end = next((i for i, value in enumerate(e) if value < self.GONE * max(e)), n)
        e, c, n = [stats.ln(value) for value in e[:end]], c[:end], end
        low, high = min(c), max(c)
        if high <= 0 or high < self.BONUS_CHANGE * max(low, 1e-12):
            return
        width = max(2, n // self.SLOPE_PARTS)
        speeds = [(c[i], (e[i + width] - e[i]) / width) for i in range(n - width)]
        cut = stats.median([coefficient for coefficient, _ in speeds])
        slow = [v for coefficient, v in speeds if coefficient <= cut]
        fast = [v for coefficient, v in speeds if coefficient > cut]
        if len(slow) < self.SLOPES or len(fast) < self.SLOPES:
            return
        gap = stats.mean(slow) - stats.mean(fast)
        error = max(stats.spread(slow), stats.spread(fast), 1e-12) * math.sqrt(width * (1 / len(slow) + 1 / len(fast)))
        case = Candidate("entropy-sign", first_step=entropy.steps[0])
        if stats.mean(fast) < 0:
            self.argue(case, "bonus-lowers-entropy", gap / error, low=stats.mean(slow), high=stats.mean(fast))
        case.show(coef, coef.steps[0], coef.steps[-1]).show(entropy, entropy.steps[0], entropy.steps[-1])
        yield case


def _audited(view: View) -> Series:
    """Coefficient with which the audit found the entropy term, of the task where it is lowest.

    Coefficients within four standard errors of 0 may be rounding, and count for nothing.
    """
    audited = {s.name: s for s in view.history.matching(f"{metric.AUDIT_COEF.prefix}entropy/") if len(s)}

    def certain(series: Series) -> bool:
        error = audited.get(f"{series.name}_error")
        return error is None or abs(stats.median(series.values)) > _CERTAIN * stats.median(error.values)

    coefficients = [
        series for name, series in audited.items() if name.endswith(metric.AUDIT_COEF.suffix) and certain(series)
    ]
    return min(coefficients, key=lambda s: stats.median(s.values), default=Series(metric.AUDIT_COEF.of("entropy")))
