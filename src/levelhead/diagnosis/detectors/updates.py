"""Single updates that break the policy, and steps that suddenly cost nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Suspicion, View, index_at, shift_at, unmoved
from levelhead.diagnosis.history import Series

_COMPANIONS = ((metric.ENTROPY, 1.8), (metric.KL, 4.0), (metric.MEAN_LENGTH, 1.7), (metric.GRAD_NORM, 4.0))


class CatastrophicUpdate:
    """Within a step or three the reward falls to its floor and stays there."""

    codes = ("catastrophic-update",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Find the steepest lasting fall, and what moved with it."""
        reward = view.series(metric.REWARD, view.course.source)
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
        if at is not None and series.name == metric.GRAD_NORM and at >= 3:
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
        valid = view.series(metric.VALIDITY)
        n = len(valid)
        if n < 2:
            return
        losses = Losses.of(valid, view.series("updates"))
        case = Suspicion("update-collapse")
        late = stats.mean(valid.values[-max(1, n // 5) :])
        if losses.after_updates:
            self._lost(case, valid, losses, late)
        else:
            m = stats.edge(n)
            early, end = stats.mean(valid.values[:m]), stats.mean(valid.values[-m:])
            if early > 0.2:
                case.add(4.0 * stats.ramp((early - end) / early, 0.3, 0.8), "validity-fell", early=early, late=end)
                level = early - 0.3 * (early - end)
                case.first_step = next((s for s, v in zip(valid.steps, valid.values, strict=True) if v < level), None)
                case.show(valid, valid.steps[0], valid.steps[-1])
        if case.clues:
            # Validity that comes back only to be lost at the next update has not recovered.
            if late > 0.8 and losses.surprise < _SURPRISING:
                case.add(-2.5, "validity-recovers", late=late)
            yield case

    def _lost(self, case: Suspicion, valid: Series, losses: Losses, late: float) -> None:
        n, hits = len(valid), losses.after_updates
        before = max(valid.values[: hits[0] + 1])
        lasting = stats.ramp(late / max(before, 1e-9), 0.7, 0.2)
        fall = max(valid.values[i] - valid.values[i + 1] for i in hits)
        # Of few rollouts a batch, validity halves and doubles by chance.
        plain = max(stats.surety(valid.values, fall, 1), stats.surety(valid.values, before - late, max(1, n // 5)))
        share = len(hits) / losses.updates
        # Where it is lost as often without an update, updates are not to blame, unless it never comes back.
        usual = stats.mean(valid.values[: hits[0] + 1])
        blame = 1.0
        if losses.others >= _ENOUGH:
            blame = max(stats.ramp(losses.surprise, 1.0, 3.0), stats.ramp(late / max(usual, 1e-9), 0.7, 0.2))
        case.add((2.2 + 3.0 * lasting) * plain * blame, "validity-lost", count=len(hits), early=before, late=late)
        case.add(1.5 * stats.ramp(share, 0.05, 0.3) * blame, "validity-lost-often", share=share)
        case.add(
            5.0 * stats.ramp(losses.surprise, _SURPRISING, 5.0) * stats.ramp(share, 0.1, 0.3),
            "validity-lost-by-updates",
            count=len(hits),
            updates=losses.updates,
            others=losses.elsewhere,
        )
        at = hits[0] + 1
        if n - at < 2:
            case.add(-2.0, "few-rows", rows=n - at)
        case.first_step = valid.steps[at]
        case.show(valid, *(valid.steps[i] for i in sorted({at - 1, at, min(n - 1, at + 1), n - 1})))


_SURPRISING = 2.5
"""Standard errors from which losses after updates are no accident."""
_ENOUGH = 4
"""Steps without an update that make a comparison."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Readings of validity that are followed by one of less than half, told apart by whether an update lies between.

    Attributes:
        after_updates: Indices of those with an update between; all of them where the log marks no updates.
        updates: Updates that could have lost validity.
        others: Steps without an update that could have.
        elsewhere: Share of the other readings that are followed by a loss; 0 where there are none.
        surprise: What the share of updates that lose is above that of the others, in standard errors of the difference
            under one common share, both with one loss and one keep added (Agresti and Caffo 2000); with too few others,
            what it is above one half, in standard errors of one half.
    """

    after_updates: tuple[int, ...]
    updates: int
    others: int
    elsewhere: float
    surprise: float

    @classmethod
    def of(cls, valid: Series, updates: Series) -> Losses:
        """Look at every pair of neighbours of which the first is at least 0.2."""
        done = [_latest(updates, step) for step in valid.steps]
        marked = len(set(done)) > 1
        judged: list[int] = []
        others: list[int] = []
        for i in range(len(valid) - 1):
            if valid.values[i] >= 0.2:
                (judged if not marked or done[i + 1] > done[i] else others).append(i)
        lost = {i for i in (*judged, *others) if valid.values[i + 1] < 0.5 * valid.values[i]}
        hits = tuple(i for i in judged if i in lost)
        misses = sum(i in lost for i in others)
        if len(others) < _ENOUGH:
            surprise = (2 * len(hits) - len(judged)) / math.sqrt(max(len(judged), 1))
            return cls(hits, len(judged), len(others), misses / max(len(others), 1), surprise)
        n, m = len(judged) + 2, len(others) + 2
        here, there = (len(hits) + 1) / n, (misses + 1) / m
        common = (len(hits) + misses + 2) / (n + m)
        surprise = (here - there) / math.sqrt(common * (1 - common) * (1 / n + 1 / m))
        return cls(hits, len(judged), len(others), misses / max(len(others), 1), surprise)


def _latest(series: Series, step: float) -> float:
    at = index_at(series, step)
    return 0.0 if at is None else series.values[at]


class StepTime:
    """Steps suddenly take a fraction of their time: nothing is being generated, or nothing trained on."""

    codes = ("step-time-collapse",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Compare the end with the run's own ordinary steps."""
        seconds = view.series(metric.STEP_TIME)
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
