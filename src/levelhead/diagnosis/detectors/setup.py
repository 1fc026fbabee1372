"""Faults of the set-up, visible at the first row: templates, stop tokens, parsers and group sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Candidate, View, constant
from levelhead.diagnosis.history import Series


class TemplateMismatch:
    """The policy answers, but never in the form that is asked for: prompt, template and parser disagree."""

    codes = ("template-mismatch",)

    # Set by hand on the development logs (docs/doctor.md), unless a line says otherwise.
    # Weights are log-odds; a range begins where nothing counts and ends where all does.
    HARDLY_VALID = 0.15  # share of valid answers up to which hardly any parses
    VALID_RANGE = (0.15, 0.05)
    NEVER_VALID_WEIGHT = 3.6
    NEVER_VALID_ROWS = 4  # where there are so many rows,
    NEVER_VALID_FEW_WEIGHT = 2.4  # and where there are fewer
    ROWS_OF_FORM = 4  # rows of a form reward at 0
    RIGHT = 0.1  # reward of an outcome that shows right answers
    FORM_NEVER_REWARDED_WEIGHT = 2.4
    ROWS_OF_ENDS = 3  # rows of cut answers and rewards
    NEVER_ENDS = 0.95  # share of cut answers at the first row
    NO_REWARD = 0.02  # reward that is none
    NEVER_ENDS_AND_NEVER_RIGHT_WEIGHT = 1.2
    REWARD_RISES_WEIGHT = -3.0

    def examine(self, view: View) -> Iterator[Candidate]:
        """Look for a form reward or validity at zero throughout while outcomes are right or lengths look normal."""
        case = Candidate("template-mismatch", setup=True)
        valid = view.series(metric.VALIDITY)
        if len(valid) >= 2 and max(valid.values) <= self.HARDLY_VALID:
            hardly = stats.ramp(max(valid.values), *self.VALID_RANGE)
            case.add(
                (self.NEVER_VALID_WEIGHT if len(valid) >= self.NEVER_VALID_ROWS else self.NEVER_VALID_FEW_WEIGHT)
                * hardly,
                "never-valid",
                rows=len(valid),
                share=max(valid.values),
            )
            case.first_step = valid.steps[0]
            case.show(valid, valid.steps[0], valid.steps[-1])
        right = max((max(s.values) for s in view.parts("outcome")), default=0.0)
        for part in view.parts("form"):
            if (
                len(part) >= self.ROWS_OF_FORM
                and constant(part.values)
                and abs(part.values[0]) < 1e-9
                and right > self.RIGHT
            ):
                case.add(self.FORM_NEVER_REWARDED_WEIGHT, "form-never-rewarded", metric=part.name)
                case.first_step = part.steps[0]
                case.show(part, part.steps[0], part.steps[-1])
                break
        cut, reward = view.series(metric.CLIPPED_RATIO), view.series(metric.REWARD, view.reward_trend.source)
        if (
            len(cut) >= self.ROWS_OF_ENDS
            and len(reward) >= self.ROWS_OF_ENDS
            and cut.values[0] >= self.NEVER_ENDS
            and max(reward.values) <= self.NO_REWARD
        ):
            case.add(self.NEVER_ENDS_AND_NEVER_RIGHT_WEIGHT, "never-ends-and-never-right")
            case.first_step = cut.steps[0]
            case.show(cut, cut.steps[0])
        if case.evidence:
            case.add(self.REWARD_RISES_WEIGHT * view.reward_trend.learned, "reward-rises")
            yield case


class GroupSize:
    """Groups too small for their own baseline: two rollouts give advantages of two values."""

    codes = ("advantage-two-valued", "group-size-too-small")

    # Set by hand on the development logs (docs/doctor.md), unless a line says otherwise.
    # Weights are log-odds; a range begins where nothing counts and ends where all does.
    POSITIVE = 1e-6  # advantage that is one
    SAMPLE_STD = math.sqrt(
        0.5
    )  # what a group of two gives with the sample deviation: sqrt(1/2); 1 with that of the population
    PINNED_WITHIN = 0.012  # distance from it that is rounding in a log
    ROWS_PINNED = 3  # rows with contrast
    PINNED_SHARE = 0.8  # share of them that must stand there
    ADVANTAGES_PINNED_WEIGHT = 3.4
    SMALL_GROUP = 3  # rollouts a prompt that are too few
    GROUP_SIZE_WEIGHT = 2.6
    SMALL_PINNED_WEIGHT = 2.0  # the same for groups that are too small
    ROWS_OF_PAIRS = 8  # rows with contrast that tell pairs
    MOST_PAIRS = 16  # groups a row
    ROUNDING_OF_PAIRS = 0.03  # distance from whole numbers that is rounding in a log
    SPREAD_OF_PAIRS_WEIGHT = 2.6  # as for a size that is logged
    ADVANTAGES_ARE_REWARDS_WEIGHT = 4.2
    DEAD_SHARE_WEIGHT = 1.2
    DEAD_SHARE_RANGE = (0.3, 0.8)
    REWARD_FALLS_WEIGHT = 1.5
    REWARD_RISES_WEIGHT = -3.0
    ROWS_WITHOUT_BASELINE = 3  # rows of rewards and advantages
    SAME_WITHIN = 0.002  # distance that is rounding in a log

    def examine(self, view: View) -> Iterator[Candidate]:
        """Read the advantages' extremes, which a group of two pins to +-0.707 (sample std) or +-1 (population)."""
        high, low = view.series("advantages/max"), view.series("advantages/min")
        size = view.series("group_size")
        group_size = size.values[-1] if len(size) else None
        pinned = None
        if len(high) and len(high) == len(low):
            pairs = [(a, b) for a, b in zip(high.values, low.values, strict=True) if a > self.POSITIVE]
            for value in (self.SAMPLE_STD, 1.0):
                hits = sum(
                    abs(a - value) < self.PINNED_WITHIN and abs(b + value) < self.PINNED_WITHIN for a, b in pairs
                )
                if len(pairs) >= self.ROWS_PINNED and hits >= self.PINNED_SHARE * len(pairs):
                    pinned = value
        std = view.series(metric.REWARD_STD)
        pairs_only = pinned is None and self._of_pairs(view.series(metric.REWARD, view.reward_trend.source), std)
        case = Candidate("advantage-two-valued", setup=True)
        if pinned is not None:
            case.add(self.ADVANTAGES_PINNED_WEIGHT, "advantages-pinned", value=pinned)
            case.first_step = high.steps[0]
            case.show(high, high.steps[0], high.steps[-1]).show(low, low.steps[-1])
        small = Candidate("group-size-too-small", setup=True, first_step=view.history.first_step)
        if group_size is not None and group_size <= self.SMALL_GROUP:
            small.add(self.GROUP_SIZE_WEIGHT, "group-size", size=group_size)
        elif pinned is not None:
            small.add(self.SMALL_PINNED_WEIGHT, "advantages-pinned", value=pinned)
        elif pairs_only:
            small.add(self.SPREAD_OF_PAIRS_WEIGHT, "spread-of-pairs", rows=sum(v > 0 for v in std.values))
            small.show(std, *(step for step, v in zip(std.steps, std.values, strict=True) if v > 0))
        if self._without_baseline(view):
            small.add(self.ADVANTAGES_ARE_REWARDS_WEIGHT, "advantages-are-rewards")
            small.show(high, view.history.first_step).show(view.series("reward/max"), view.history.first_step)
        for candidate in (case, small):
            if candidate.evidence:
                dead = view.dead
                if len(dead):
                    share = stats.mean(dead.values)
                    candidate.add(
                        self.DEAD_SHARE_WEIGHT * stats.ramp(share, *self.DEAD_SHARE_RANGE), "dead-share", share=share
                    )
                candidate.add(
                    self.REWARD_FALLS_WEIGHT * view.reward_trend.lost,
                    "reward-falls",
                    value=view.reward_trend.reward.late,
                )
                candidate.add(self.REWARD_RISES_WEIGHT * view.reward_trend.learned, "reward-rises")
                yield candidate

    def _of_pairs(self, reward: Series, std: Series) -> bool:
        """Whether rewards of 0 and 1 and their deviation within groups, means of a few groups, can only be of pairs.

        The sample deviation of a pair is sqrt(1/2) or 0.  Over B pairs, j of them mixed and m solved, the row reads
        sqrt(1/2) j / B beside a reward of (j / 2 + m) / B.  One B has to fit every row.
        """
        if reward.steps != std.steps or sum(v > self.POSITIVE for v in std.values) < self.ROWS_OF_PAIRS:
            return False
        rows = list(zip(reward.values, std.values, strict=True))
        return any(all(self._pairs_give(r, s, groups) for r, s in rows) for groups in range(1, self.MOST_PAIRS + 1))

    def _pairs_give(self, reward: float, std: float, groups: int) -> bool:
        """Whether one row can be of so many pairs."""
        mixed = std * groups / self.SAMPLE_STD
        solved = reward * groups - round(mixed) / 2
        whole = max(abs(mixed - round(mixed)), abs(solved - round(solved))) < self.ROUNDING_OF_PAIRS
        return whole and 0 <= round(solved) <= groups - round(mixed)

    def _without_baseline(self, view: View) -> bool:
        """Whether advantages are the rewards themselves: a mean over a group of one takes nothing away."""
        for name in ("max", "min"):
            reward, advantage = view.series(metric.REWARD_BY_TASK.of(name)), view.series(f"advantages/{name}")
            if len(reward) < self.ROWS_WITHOUT_BASELINE or reward.steps != advantage.steps or constant(reward.values):
                return False
            if any(abs(a - b) > self.SAME_WITHIN for a, b in zip(advantage.values, reward.values, strict=True)):
                return False
        return True
