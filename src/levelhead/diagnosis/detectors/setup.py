"""Faults of the set-up, visible at the first row: templates, stop tokens, parsers and group sizes."""

from __future__ import annotations

from collections.abc import Iterator

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Candidate, Tuned, View
from levelhead.diagnosis.history import Series
from levelhead.diagnosis.trend import constant


class TemplateMismatch(Tuned):
    """The policy answers, but never in the form that is asked for: prompt, template and parser disagree."""

    codes = ("template-mismatch",)

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
        right = max((max(s.values) for s in view.history.parts("outcome")), default=0.0)
        for part in view.history.parts("form"):
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


class GroupSize(Tuned):
    """Groups too small for their own baseline: two rollouts give advantages of two values."""

    codes = ("advantage-two-valued", "group-size-too-small")

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
                    self.argue(candidate, "dead-share", share, share=share)
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
        return bool(whole and 0 <= round(solved) <= groups - round(mixed))

    def _without_baseline(self, view: View) -> bool:
        """Whether advantages are the rewards themselves: a mean over a group of one takes nothing away."""
        for name in ("max", "min"):
            reward, advantage = view.series(metric.REWARD_BY_TASK.of(name)), view.series(f"advantages/{name}")
            if len(reward) < self.ROWS_WITHOUT_BASELINE or reward.steps != advantage.steps or constant(reward.values):
                return False
            if any(abs(a - b) > self.SAME_WITHIN for a, b in zip(advantage.values, reward.values, strict=True)):
                return False
        return True
