"""Single updates that break the policy, steps that suddenly cost nothing, and updates that rounding hides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Candidate, Tuned, View, unmoved
from levelhead.diagnosis.history import Series
from levelhead.diagnosis.trend import index_at, shift_at

# What moves with the reward when an update breaks a policy, and the factor by which; set by hand.
_COMPANIONS = ((metric.ENTROPY, 1.8), (metric.KL, 4.0), (metric.MEAN_LENGTH, 1.7), (metric.GRAD_NORM, 4.0))


class CatastrophicUpdate(Tuned):
    """Within a step or three the reward falls to its floor and stays there."""

    codes = ("catastrophic-update",)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Find the steepest lasting fall, and what moved with it."""
        reward = view.series(metric.REWARD, view.reward_trend.source)
        n = len(reward)
        if n < self.ROWS:
            return
        at, score = stats.change_point(reward.values)
        before, after = reward.values[max(0, at - self.ROWS_BEFORE) : at], reward.values[at:]
        if len(before) < self.LEAST_BEFORE or not after:
            return
        level, rest = stats.median(before), stats.median(after)
        floor = min(min(reward.values), 0.0) if min(reward.values) >= 0 else min(reward.values)
        lost = (level - rest) / max(level - floor, 1e-12)
        if rest >= level or lost < self.LOST:
            return
        case = Candidate("catastrophic-update")
        abrupt = self._abrupt(reward, at, level, rest)
        case.add(
            self.REWARD_FELL_AT_ONCE_WEIGHT
            * stats.ramp(score, *self.CHANGE_RANGE)
            * stats.ramp(lost, *self.LOST_RANGE)
            * abrupt,
            "reward-fell-at-once",
            early=level,
            late=rest,
        )
        if len(after) < self.ROWS_AFTER:
            case.add(self.FEW_ROWS_WEIGHT, "few-rows", rows=len(after))
        case.first_step = reward.steps[at]
        case.show(reward, reward.steps[at - 1], reward.steps[at], reward.steps[-1])
        for name, factor in _COMPANIONS:
            self._companion(case, view.series(name), reward.steps[at], factor * (1 if abrupt else 2))
        if len(set(after)) == 1 and unmoved(view, reward.steps[at]):
            case.add(self.POLICY_UNMOVED_WEIGHT, "policy-unmoved")
        yield case

    def _abrupt(self, reward: Series, at: int, level: float, rest: float) -> float:
        """1 where nearly all of the fall happens within three rows, falling to 0 at a tenth of the run.

        Where a log is short, three rows are much of it, and no moment.
        """
        high, low = rest + self.FALL_BEGINS * (level - rest), rest + self.FALL_DONE * (level - rest)
        start = next((i for i in range(at - 1, -1, -1) if reward.values[i] >= high), 0)
        right = next((i for i in range(at, len(reward)) if reward.values[i] <= low), len(reward) - 1)
        n = len(reward)
        return stats.ramp(
            right - start,
            max(min(self.SLOW_ROWS, self.SLOW_OF_SHORT * n), self.SLOW_OF_LONG * n),
            max(min(self.ABRUPT_ROWS, self.ABRUPT_OF_SHORT * n), self.ABRUPT_OF_LONG * n),
        )

    def _companion(self, case: Candidate, series: Series, step: float, factor: float) -> None:
        moved = shift_at(series, step)
        at = index_at(series, step)
        if at is not None and series.name == metric.GRAD_NORM and at >= self.ROWS_OF_GRADIENT:
            usual = stats.median(series.values[max(0, at - self.GRADIENT_BEFORE) : max(1, at - 2)])
            peak = max(series.values[max(0, at - 2) : at + 1])
            if usual > 0 and peak / usual >= self.GRADIENT_SPIKE:
                case.add(self.GRADIENT_SPIKED_WEIGHT, "gradient-spiked", factor=peak / usual, step=step)
                case.show(series, series.steps[max(0, at - 1)], step)
            return
        if moved and stats.ratio(max(moved, key=abs), min(moved, key=abs), 1e-6) >= factor:
            case.add(self.MOVED_TOO_WEIGHT, "moved-too", metric=series.name, early=moved[0], late=moved[1])
            case.show(series, step)


class UpdateCollapse(Tuned):
    """Validity is lost after updates: the policy was pushed away from all that parses."""

    codes = ("update-collapse",)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Count updates whose next rollouts lost more than half of the validity that they had."""
        valid = view.series(metric.VALIDITY)
        n = len(valid)
        if n < 2:
            return
        losses = Losses.of(valid, view.series("updates"))
        case = Candidate("update-collapse")
        late = stats.mean(valid.values[-max(1, n // self.END_PART) :])
        if losses.after_updates:
            self._lost(case, valid, losses, late)
        else:
            m = stats.edge(n)
            early, end = stats.mean(valid.values[:m]), stats.mean(valid.values[-m:])
            if early > self.VALID_FROM:
                self.argue(case, "validity-fell", (early - end) / early, early=early, late=end)
                level = early - self.BAD_FROM * (early - end)
                case.first_step = next((s for s, v in zip(valid.steps, valid.values, strict=True) if v < level), None)
                case.show(valid, valid.steps[0], valid.steps[-1])
        if case.evidence:
            # Validity that comes back only to be lost at the next update has not recovered.
            if late > self.RECOVERED and losses.surprise < _SURPRISING:
                case.add(self.VALIDITY_RECOVERS_WEIGHT, "validity-recovers", late=late)
            yield case

    def _lost(self, case: Candidate, valid: Series, losses: Losses, late: float) -> None:
        n, hits = len(valid), losses.after_updates
        before = max(valid.values[: hits[0] + 1])
        lasting = stats.ramp(late / max(before, 1e-9), *self.LASTING_RANGE)
        fall = max(valid.values[i] - valid.values[i + 1] for i in hits)
        # Of few rollouts a batch, validity halves and doubles by chance.
        plain = max(
            stats.surety(valid.values, fall, 1), stats.surety(valid.values, before - late, max(1, n // self.END_PART))
        )
        share = len(hits) / losses.updates
        # Where it is lost as often without an update, updates are not to blame, unless it never comes back.
        usual = stats.mean(valid.values[: hits[0] + 1])
        blame = 1.0
        if losses.others >= _ENOUGH:
            blame = max(
                stats.ramp(losses.surprise, *self.BLAME_RANGE), stats.ramp(late / max(usual, 1e-9), *self.LASTING_RANGE)
            )
        case.add(
            (self.VALIDITY_LOST_WEIGHT + self.VALIDITY_LOST_LASTING_WEIGHT * lasting) * plain * blame,
            "validity-lost",
            count=len(hits),
            early=before,
            late=late,
        )
        self.argue(case, "validity-lost-often", share, blame, share=share)
        self.argue(
            case,
            "validity-lost-by-updates",
            share,
            stats.ramp(losses.surprise, _SURPRISING, self.SURPRISE_IN_FULL),
            count=len(hits),
            updates=losses.updates,
            others=losses.elsewhere,
        )
        at = hits[0] + 1
        if n - at < 2:
            case.add(self.FEW_ROWS_WEIGHT, "few-rows", rows=n - at)
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

    # Set by hand on the development logs (docs/doctor.md), unless a line says otherwise.
    # Weights are log-odds; a range begins where nothing counts and ends where all does.
    VALID_FROM = 0.2  # validity that can be lost
    LOST = 0.5  # share of it that must be there not to be lost

    @classmethod
    def of(cls, valid: Series, updates: Series) -> Losses:
        """Look at every pair of neighbours of which the first is at least 0.2.

        An update is counted by the row that it ends, or by the one after: the count that tells more is right.
        """
        done = [_latest(updates, step) for step in valid.steps]
        grew = [False, *(later > earlier for earlier, later in itertools.pairwise(done))]
        marked = len(set(done)) > 1
        return max(
            (cls._between(valid, flags if marked else [True] * len(valid)) for flags in (grew[1:], grew[:-1])),
            key=lambda losses: losses.surprise,
        )

    @classmethod
    def _between(cls, valid: Series, updated: Sequence[bool]) -> Losses:
        judged: list[int] = []
        others: list[int] = []
        for i in range(len(valid) - 1):
            if valid.values[i] >= cls.VALID_FROM:
                (judged if updated[i] else others).append(i)
        lost = {i for i in (*judged, *others) if valid.values[i + 1] < cls.LOST * valid.values[i]}
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


class StepTime(Tuned):
    """Steps suddenly take a fraction of their time: nothing is being generated, or nothing trained on."""

    codes = ("step-time-collapse",)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Compare the end with the run's own ordinary steps."""
        seconds = view.series(metric.STEP_TIME)
        n = len(seconds)
        if n < self.ROWS:
            return
        at, _ = stats.change_point([max(v, 1e-9) for v in seconds.values])
        if at < 2:
            return
        before, after = stats.median(seconds.values[:at]), stats.median(seconds.values[at:])
        factor = before / max(after, 1e-9)
        if after <= 0 or factor < self.FASTER:
            return
        case = Candidate("step-time-collapse", first_step=seconds.steps[at])
        case.add(
            self.STEPS_COST_NOTHING_WEIGHT
            + self.STEPS_COST_NOTHING_MORE_WEIGHT * stats.ramp(factor, *self.STEPS_COST_NOTHING_RANGE),
            "steps-cost-nothing",
            before=before,
            after=after,
        )
        case.add(self.REWARD_RISES_WEIGHT * view.reward_trend.learned, "reward-rises")
        yield case.show(seconds, seconds.steps[at - 1], seconds.steps[at], seconds.steps[-1])


class HiddenUpdates(Tuned):
    """Rounding hides from the products most of what the weights have learnt."""

    codes = ("update-hidden",)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Look at what the computing type shows of the change since the stage began."""
        cosine, norm = view.series(metric.VISIBLE_COSINE), view.series(metric.VISIBLE)
        if len(cosine) < self.ROWS or len(norm) < self.ROWS:
            return
        late = stats.median(cosine.values[-self.ROWS :])
        case = Candidate("update-hidden", first_step=cosine.steps[0])
        self.argue(case, "hidden", late, updates=len(cosine), cosine=late, norm=stats.median(norm.values[-self.ROWS :]))
        if case.evidence:
            case.add(self.REWARD_RISES_WEIGHT * view.reward_trend.learned, "reward-rises")
            yield case.show(cosine, cosine.steps[0], cosine.steps[-1])
