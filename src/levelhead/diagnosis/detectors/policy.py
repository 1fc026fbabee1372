"""The policy's spread and its distance from the reference: entropy and KL."""

from __future__ import annotations

import math
from collections.abc import Iterator

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Suspicion, View, crossing, ends, shift_at
from levelhead.diagnosis.history import Series

_FLOOR = 1e-4
_OF_THE_FALL = ("entropy-fell", "entropy-low", "entropy-fell-fast")
"""Arguments that a lower temperature would explain as well."""


class EntropyCollapse:
    """Entropy falls for good while the reward does not rise: the policy stops exploring before it has learnt."""

    codes = ("entropy-collapse",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Weigh depth, speed and level of the fall against what the reward made of it."""
        entropy = view.entropy
        # Labels are meant to narrow the policy.
        if not len(entropy) or view.supervised:
            return
        course = view.course
        case = Suspicion("entropy-collapse")
        early, late = ends(entropy)
        fall = stats.ln(max(early, _FLOOR) / max(late, _FLOOR))
        if fall > stats.ln(1.5) and len(entropy) >= 3:
            case.add(2.6 * stats.ramp(fall, stats.ln(2), stats.ln(6)), "entropy-fell", early=early, late=late)
            case.add(
                1.6 * stats.ramp(-stats.ln(max(late, _FLOOR)), -stats.ln(0.2), -stats.ln(0.02)),
                "entropy-low",
                late=late,
            )
            self._speed(case, entropy)
            if not course.reward.n and not course.held_out:
                case.add(0.6 * stats.ramp(fall, stats.ln(3), stats.ln(6)), "reward-not-logged")
                case.severity = "warning"
        else:
            case.add(
                2.5 * stats.ramp(-stats.ln(max(late, _FLOOR)), -stats.ln(0.15), -stats.ln(0.02)),
                "entropy-low",
                late=late,
            )
        if case.clues:
            self._company(case, view)
        case.add(-4.2 * course.learned, "reward-rises")
        case.add(-1.5 * course.near_top, "reward-near-top", value=course.reward.late)
        if course.holds > 0.5:
            # What pays has been learnt: a policy that is sure of it need not explore.
            case.severity = "warning"
            case.add(-2.0 * course.holds * (1 - course.learned), "reward-holds", value=course.reward.late)
        self._cooled(case, view, fall)
        self._stalled(case, view, late)
        level = max(early / 3, late * 1.3) if fall > stats.ln(1.5) else math.inf
        case.first_step = crossing(entropy, level, above=False) if level < math.inf else entropy.steps[0]
        case.show(
            entropy, entropy.steps[0], *((case.first_step,) if case.first_step is not None else ()), entropy.steps[-1]
        )
        case.setup = case.first_step == entropy.steps[0]
        yield case

    def _speed(self, case: Suspicion, entropy: Series) -> None:
        if len(entropy) < 8:
            return
        width = max(3, round(0.08 * len(entropy)))
        values = [stats.ln(max(v, _FLOOR)) for v in entropy.values]
        steepest = max((a - b for a, b in zip(values, values[width:], strict=False)), default=0.0)
        case.add(1.2 * stats.ramp(steepest, stats.ln(3), stats.ln(6)), "entropy-fell-fast", factor=math.exp(steepest))

    def _company(self, case: Suspicion, view: View) -> None:
        """What a collapse brings with it: dead groups, a reward that stays low or falls."""
        dead, course = view.dead, view.course
        if len(dead) >= 4:
            early, late = (
                stats.mean(dead.values[: len(dead) // 3 or 1]),
                stats.mean(dead.values[-(len(dead) // 3 or 1) :]),
            )
            if not course.near_top and course.holds <= 0.5:
                case.add(1.6 * stats.ramp(late - early, 0.1, 0.35), "dead-share-grows", early=early, late=late)
        case.add(1.5 * course.lost * (1 - course.learned), "reward-falls", value=course.reward.late)
        if course.has_signal and course.learned < 0.2 and max(course.near_top, course.holds) < 0.5:
            case.add(0.8, "reward-flat")

    def _cooled(self, case: Suspicion, view: View, fall: float) -> None:
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
        weight = sum(clue.weight for clue in case.clues if clue.key in _OF_THE_FALL)
        case.add(-max(0.0, weight) * explained, "temperature-cools", early=early, late=late)

    def _stalled(self, case: Suspicion, view: View, late: float) -> None:
        """A reward that rose, then stopped far from the top once entropy and contrast were spent."""
        reward, dead = view.series(metric.REWARD, view.course.source), view.dead
        n = len(reward)
        if n < 30 or late > 0.1 or view.course.near_top > 0.3 or len(dead) < 8 or view.course.top is None:
            return
        rest = reward.values[int(0.4 * n) :]
        gain = stats.mean(rest[-len(rest) // 3 :]) - stats.mean(rest[: len(rest) // 3])
        if stats.median(dead.values[-len(dead) // 2 :]) > 0.7 and gain < 0.3 * stats.noise(reward.values):
            case.add(2.2 * view.course.learned, "stalled", value=view.course.reward.late)


class EntropyExplosion:
    """Entropy climbs and the reward suffers: the policy dissolves into noise."""

    codes = ("entropy-explosion",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Weigh the climb against the reward."""
        entropy = view.entropy
        if not len(entropy):
            return
        course = view.course
        early, late = ends(entropy)
        late = max(late, stats.quantile(entropy.values[-max(1, len(entropy) // 4) :], 0.75))
        case = Suspicion("entropy-explosion")
        rise = stats.ln(max(late, _FLOOR) / max(early, _FLOOR))
        # Little entropy that has become several times as much is still little.
        noisy = stats.ramp(late, 0.15, 0.5)
        weight = 2.8 * (0.4 + 0.6 * noisy) * stats.ramp(rise, stats.ln(1.7), stats.ln(4))
        case.add(weight, "entropy-rose", early=early, late=late)
        if rise > stats.ln(1.5):
            case.add(1.6 * stats.ramp(late - early, 0.3, 2.0), "entropy-rose-by", nats=late - early)
            case.add(1.0 * stats.ramp(late, 2.0, 4.0), "entropy-high", late=late)
            case.add(2.2 * noisy * course.lost * (1 - course.learned), "reward-falls", value=course.reward.late)
            if course.has_signal and course.learned < 0.2:
                case.add(0.5 * noisy, "reward-flat")
        else:
            # Uniform over a few hundred tokens at every position: no language is that open.
            case.add(2.6 * stats.ramp(late, 3.0, 4.5) + 1.4 * stats.ramp(late, 4.5, 7.0), "entropy-high", late=late)
        case.add(-4.0 * course.learned, "reward-rises")
        case.first_step = crossing(entropy, early * 1.7 + 0.05)
        case.show(
            entropy, entropy.steps[0], *((case.first_step,) if case.first_step is not None else ()), entropy.steps[-1]
        )
        yield case


class EntropySign:
    """Entropy falls faster the larger its bonus: the bonus enters with the wrong sign."""

    codes = ("entropy-sign",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Ask the audit if it ran; else compare the fall under small and under large coefficients of the run."""
        audited = _audited(view)
        if len(audited) and stats.median(audited.values) < 0:
            value = stats.median(audited.values)
            case = Suspicion("entropy-sign", first_step=audited.steps[0], setup=True)
            yield case.add(7.0, "audit-coefficient", value=value).show(audited, audited.steps[0])
            return
        entropy, coef = view.entropy, view.series(metric.ENTROPY_COEF)
        if len(entropy) < 12 or len(coef) < 12:
            return
        n = min(len(entropy), len(coef))
        e, c = entropy.values[-n:], coef.values[-n:]
        low, high = min(c), max(c)
        if high <= 0 or high < 1.5 * max(low, 1e-12):
            return
        width = max(2, n // 12)
        speeds = [(c[i], (e[i + width] - e[i]) / width) for i in range(n - width)]
        cut = stats.median([coefficient for coefficient, _ in speeds])
        slow = [v for coefficient, v in speeds if coefficient <= cut]
        fast = [v for coefficient, v in speeds if coefficient > cut]
        if len(slow) < 4 or len(fast) < 4:
            return
        gap = stats.mean(slow) - stats.mean(fast)
        error = max(stats.spread(slow), stats.spread(fast), 1e-12) * math.sqrt(width * (1 / len(slow) + 1 / len(fast)))
        case = Suspicion("entropy-sign", first_step=entropy.steps[-n])
        if stats.mean(fast) < 0:
            case.add(
                5.0 * stats.ramp(gap / error, 2, 5), "bonus-lowers-entropy", low=stats.mean(slow), high=stats.mean(fast)
            )
        case.show(coef, coef.steps[-n], coef.steps[-1]).show(entropy, entropy.steps[-n], entropy.steps[-1])
        yield case


def _audited(view: View) -> Series:
    """Coefficient with which the audit found the entropy term, of the task where it is lowest.

    Coefficients within four standard errors of 0 may be rounding, and count for nothing.
    """
    audited = {s.name: s for s in view.history.matching(f"{metric.AUDIT_COEF.prefix}entropy/") if len(s)}

    def certain(series: Series) -> bool:
        error = audited.get(f"{series.name}_error")
        return error is None or abs(stats.median(series.values)) > 4 * stats.median(error.values)

    coefficients = [
        series for name, series in audited.items() if name.endswith(metric.AUDIT_COEF.suffix) and certain(series)
    ]
    return min(coefficients, key=lambda s: stats.median(s.values), default=Series(metric.AUDIT_COEF.of("entropy")))


class KlDivergence:
    """Distance to the reference: out of hand, or slowly growing with nothing to show for it."""

    codes = ("kl-blowup", "reference-drift")

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Judge the level against nats that a policy can afford, and the growth against its own beginning."""
        kl = view.series(metric.KL)
        if len(kl) < 2:
            if len(kl) and kl.values[0] > 1:
                case = Suspicion("kl-blowup", first_step=kl.steps[0], setup=True).show(kl, kl.steps[0])
                size = stats.log10(kl.values[0])
                weight = 3.0 * stats.ramp(size, 0, 0.8) + 1.5 * stats.ramp(size, 0.8, 1.5)
                yield case.add(weight, "kl-high", late=kl.values[0])
            return
        m = stats.edge(len(kl))
        late = stats.median(kl.values[-m:])
        early = stats.median(kl.values[: max(2, m)])
        growth = stats.ratio(late, max(min(early, kl.values[0] if kl.values[0] > 0 else early), 1e-4))
        yield self._blowup(view, kl, late, growth)
        yield self._drift(view, kl, late, growth)

    def _blowup(self, view: View, kl: Series, late: float, growth: float) -> Suspicion:
        course = view.course
        case = Suspicion("kl-blowup")
        level = max(late, 1e-9)
        case.add(3.0 * stats.ramp(stats.log10(level), stats.log10(0.3), stats.log10(3)), "kl-high", late=late)
        if late > 0.1:
            case.add(1.0 * stats.ramp(stats.log10(growth), 0.7, 2), "kl-grew", factor=growth)
        case.add(2.0 * stats.ramp(stats.log10(level), 1, 2), "kl-beyond-reason", late=late)
        jumps = [i for i, v in enumerate(kl.values) if v > max(1.0, 100 * stats.median(kl.values))]
        if len(jumps) >= 2 and len(jumps) > 0.05 * len(kl):
            case.add(3.0 * (1 - course.learned), "kl-jumps", count=len(jumps), value=max(kl.values))
            case.show(kl, *(kl.steps[i] for i in jumps[:3]))
        gradient = view.series(metric.GRAD_NORM)
        if len(gradient) >= 8 and late > 0.3:
            tail = stats.quantile(gradient.values, 0.97) / max(stats.median(gradient.values), 1e-12)
            case.add(0.8 * stats.ramp(tail, 5, 12), "gradients-heavy-tailed", factor=tail)
        if late > 0.2:
            case.add(1.6 * course.lost * (1 - course.learned), "reward-falls", value=course.reward.late)
        if late > 1 and course.has_signal and course.learned < 0.2:
            case.add(0.6, "reward-flat")
        case.add(-2.8 * course.learned * (1 - stats.ramp(late, 1, 5)), "reward-rises")
        peak = max(kl.values)
        if view.from_start and kl.values[0] >= 0.5 * max(late, stats.quantile(kl.values, 0.9)) and kl.values[0] > 0.05:
            case.add(-2.0, "kl-high-from-the-first-row", first=kl.values[0])
        case.first_step = kl.steps[jumps[0]] if len(jumps) >= 2 else crossing(kl, max(0.3, 0.3 * late))
        steps = (case.first_step,) if case.first_step is not None else ()
        return case.show(kl, kl.steps[0], *steps, kl.steps[kl.values.index(peak)], kl.steps[-1])

    def _drift(self, view: View, kl: Series, late: float, growth: float) -> Suspicion:
        course = view.course
        case = Suspicion("reference-drift")
        if len(kl) >= 20 and stats.kendall_z(kl.values) > 4:
            case.add(2.6 * stats.ramp(late, 0.1, 0.5), "kl-climbs", late=late)
            case.add(0.8 * stats.ramp(stats.log10(growth), 0.7, 2), "kl-grew", factor=growth)
            if course.has_signal and course.learned < 0.2:
                case.add(0.6, "reward-flat")
            case.add(-3.0 * course.learned, "reward-rises")
        case.first_step = crossing(kl, max(0.1, 0.5 * late))
        return case.show(kl, kl.steps[0], kl.steps[-1])


def aftermath(view: View, step: float) -> float:
    """0 to 1: how much harm the run shows after ``step`` (reward down, entropy, KL or length elsewhere for good)."""
    harm = 0.0
    reward = view.series(metric.REWARD, view.course.source)
    moved = shift_at(reward, step)
    if moved:
        before, after = moved
        noise = max(stats.noise(reward.values), view.course.reward.scale * 0.3, 1e-12)
        if before - after > 3 * noise and before - after > 0.2 * max(abs(before), 1e-9):
            harm += 0.8
    for name, factor in ((metric.ENTROPY, 2.0), (metric.KL, 4.0), (metric.MEAN_LENGTH, 1.8)):
        moved = shift_at(view.series(name), step)
        if moved and min(abs(moved[0]), abs(moved[1])) >= 0:
            low, high = sorted((max(abs(moved[0]), _FLOOR), max(abs(moved[1]), _FLOOR)))
            harm += 0.35 if high / low >= factor else 0.0
    return min(1.0, harm)
