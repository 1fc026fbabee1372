"""Single updates that break the policy, and steps that suddenly cost nothing."""

from __future__ import annotations

from collections.abc import Iterator

from levelhead.watch import stats
from levelhead.watch.detectors.base import Suspicion, View, index_at, shift_at, unmoved
from levelhead.watch.history import Series

_COMPANIONS = (("entropy", 1.8), ("kl", 4.0), ("completions/mean_length", 1.7), ("grad_norm", 4.0))


class CatastrophicUpdate:
    """Within a step or three the reward falls to its floor and stays there."""

    codes = ("catastrophic-update",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Find the steepest lasting fall, and what moved with it."""
        reward = view.series("reward", view.course.source)
        n = len(reward)
        if n < 6:
            return
        at, score = stats.change_point(reward.values)
        before, after = reward.values[max(0, at - 12) : at], reward.values[at:]
        if len(before) < 3 or not after:
            return
        level, rest = stats.median(before), stats.median(after)
        floor = min(min(reward.values), 0.0) if min(reward.values) >= 0 else min(reward.values)
        lost = (level - rest) / max(level - floor, 1e-12)
        if rest >= level or lost < 0.4:
            return
        case = Suspicion("catastrophic-update")
        abrupt = self._abrupt(reward, at, level, rest)
        case.add(
            4.6 * stats.ramp(score, 4, 9) * stats.ramp(lost, 0.45, 0.8) * abrupt,
            "reward-fell-at-once",
            early=level,
            late=rest,
        )
        if len(after) < 3:
            case.add(-2.0, "few-rows", rows=len(after))
        case.first_step = reward.steps[at]
        case.show(reward, reward.steps[at - 1], reward.steps[at], reward.steps[-1])
        for name, factor in _COMPANIONS:
            self._companion(case, view.series(name), reward.steps[at], factor * (1 if abrupt else 2))
        if len(set(after)) == 1 and unmoved(view, reward.steps[at]):
            case.add(-2.5, "policy-unmoved")
        yield case

    def _abrupt(self, reward: Series, at: int, level: float, rest: float) -> float:
        """1 where nearly all of the fall happens within three rows, falling to 0 at a tenth of the run.

        Where a log is short, three rows are much of it, and no moment.
        """
        high, low = rest + 0.8 * (level - rest), rest + 0.25 * (level - rest)
        left = next((i for i in range(at - 1, -1, -1) if reward.values[i] >= high), 0)
        right = next((i for i in range(at, len(reward)) if reward.values[i] <= low), len(reward) - 1)
        n = len(reward)
        return stats.ramp(right - left, max(min(6, 0.3 * n), 0.12 * n), max(min(3, 0.15 * n), 0.03 * n))

    def _companion(self, case: Suspicion, series: Series, step: float, factor: float) -> None:
        moved = shift_at(series, step)
        at = index_at(series, step)
        if at is not None and series.name == "grad_norm" and at >= 3:
            usual = stats.median(series.values[max(0, at - 20) : max(1, at - 2)])
            peak = max(series.values[max(0, at - 2) : at + 1])
            if usual > 0 and peak / usual >= 8:
                case.add(1.2, "gradient-spiked", factor=peak / usual, step=step)
                case.show(series, series.steps[max(0, at - 1)], step)
            return
        if moved and stats.ratio(max(moved, key=abs), min(moved, key=abs), 1e-6) >= factor:
            case.add(0.9, "moved-too", metric=series.name, early=moved[0], late=moved[1])
            case.show(series, step)


class UpdateCollapse:
    """Validity is lost after updates: the policy was pushed away from all that parses."""

    codes = ("update-collapse",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Count updates whose next rollouts lost more than half of the validity that they had."""
        valid = view.series("validity")
        n = len(valid)
        if n < 2:
            return
        collapses = collapses_of(valid)
        case = Suspicion("update-collapse")
        if collapses:
            late = stats.mean(valid.values[-max(1, n // 5) :])
            before = max(valid.values[: collapses[0] + 1])
            lasting = stats.ramp(late / max(before, 1e-9), 0.7, 0.2)
            fall = max(valid.values[i] - valid.values[i + 1] for i in collapses)
            # Of few rollouts a batch, validity halves and doubles by chance.
            plain = max(stats.surety(valid.values, fall, 1), stats.surety(valid.values, before - late, max(1, n // 5)))
            case.add((2.2 + 3.0 * lasting) * plain, "validity-lost", count=len(collapses), early=before, late=late)
            case.add(
                1.5 * stats.ramp(len(collapses) / (n - 1), 0.05, 0.3),
                "validity-lost-often",
                share=len(collapses) / (n - 1),
            )
            at = collapses[0] + 1
            if n - at < 2:
                case.add(-2.0, "few-rows", rows=n - at)
            case.first_step = valid.steps[at]
            case.show(valid, *(valid.steps[i] for i in sorted({at - 1, at, min(n - 1, at + 1), n - 1})))
        else:
            m = stats.edge(n)
            early, late = stats.mean(valid.values[:m]), stats.mean(valid.values[-m:])
            if early > 0.2:
                case.add(4.0 * stats.ramp((early - late) / early, 0.3, 0.8), "validity-fell", early=early, late=late)
                level = early - 0.3 * (early - late)
                case.first_step = next((s for s, v in zip(valid.steps, valid.values, strict=True) if v < level), None)
                case.show(valid, valid.steps[0], valid.steps[-1])
        if case.clues:
            if late > 0.8:
                case.add(-2.5, "validity-recovers", late=late)
            yield case


def collapses_of(valid: Series) -> list[int]:
    """Indices after which validity falls to less than half (from at least 0.2) at the next reading."""
    pairs = zip(valid.values, valid.values[1:], strict=False)
    return [i for i, (before, after) in enumerate(pairs) if before >= 0.2 and after < 0.5 * before]


class StepTime:
    """Steps suddenly take a fraction of their time: nothing is being generated, or nothing trained on."""

    codes = ("step-time-collapse",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Compare the end with the run's own ordinary steps."""
        seconds = view.series("step_time")
        n = len(seconds)
        if n < 6:
            return
        at, _ = stats.change_point([max(v, 1e-9) for v in seconds.values])
        if at < 2:
            return
        before, after = stats.median(seconds.values[:at]), stats.median(seconds.values[at:])
        factor = before / max(after, 1e-9)
        if after <= 0 or factor < 4:
            return
        case = Suspicion("step-time-collapse", first_step=seconds.steps[at])
        case.add(1.5 + 3.5 * stats.ramp(factor, 6, 40), "steps-cost-nothing", before=before, after=after)
        case.add(-2.5 * view.course.learned, "reward-rises")
        yield case.show(seconds, seconds.steps[at - 1], seconds.steps[at], seconds.steps[-1])
