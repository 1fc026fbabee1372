"""Contrast within groups: dead groups, all failed, all solved."""

from __future__ import annotations

from collections.abc import Iterator

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Candidate, Tuned, View
from levelhead.diagnosis.history import Series
from levelhead.diagnosis.trend import constant, ends, proven_flat, tail_start


class DeadGroups(Tuned):
    """Groups whose rewards are all equal: one code a side, and one for the mixture."""

    codes = ("reward-dead-groups", "no-learning-signal-all-zero-reward", "saturated-all-one-reward")

    def examine(self, view: View) -> Iterator[Candidate]:
        """Judge the share of dead groups, and which side they are on."""
        dead = view.dead
        reward = view.series(metric.REWARD, view.reward_trend.source)
        failing = self._all_failed(view, dead, reward)
        solved = self._all_solved(view, dead, reward)
        yield from (s for s in (failing, solved) if s)
        if len(dead):
            yield self._mixed(view, dead)

    def _all_failed(self, view: View, dead: Series, reward: Series) -> Candidate | None:
        n = len(reward)
        if not n:
            return None
        case = Candidate("no-learning-signal-all-zero-reward", setup=True)
        low = min(reward.values)
        at_floor = [abs(v - low) <= self.ROUNDING for v in reward.values]
        share = sum(at_floor) / n
        is_floor = low <= self.ROUNDING
        alive = 1 - stats.mean(dead.values) if len(dead) else None
        gone = stats.tail_run(at_floor)
        if is_floor and share < self.ALWAYS and self._gone(gone, at_floor):
            case.setup, case.first_step = False, reward.steps[n - gone]
            case.add(self.UNSEEN_WEIGHT + min(gone, self.UNSEEN_ROWS) * self.UNSEEN_EACH, "reward-gone", rows=gone)
            return case.show(reward, reward.steps[0], case.first_step, reward.steps[-1])
        if is_floor and share >= self.ALWAYS:
            known_dead = alive is not None and alive <= self.HARDLY_ALIVE
            weight = (
                {1: self.FLOOR_ONE_ROW, 2: self.FLOOR_TWO_ROWS}.get(n, self.FLOOR_WEIGHT)
                if known_dead
                else {1: self.UNSEEN_ONE_ROW, 2: self.UNSEEN_TWO_ROWS}.get(
                    n, self.UNSEEN_WEIGHT + min(n, self.UNSEEN_ROWS) * self.UNSEEN_EACH
                )
            )
            if alive is not None and alive > self.ALIVE:
                weight -= self.ALIVE_WEIGHT
            case.add(weight, "reward-always", value=low, rows=n)
        elif (
            is_floor
            and low >= 0
            and n >= self.ROWS_OF_ALMOST
            and stats.mean(reward.values) < self.ALMOST_ZERO
            and alive is not None
        ):
            self.argue(case, "reward-almost-always", 1 - alive, value=stats.mean(reward.values))
            case.add(self.REWARD_RISES_WEIGHT * view.reward_trend.learned, "reward-rises")
        failed = view.series(metric.ALL_FAILED)
        if len(failed):
            late = stats.mean(failed.values[-max(stats.edge(len(failed)), self.GROUPS_FAILED_ROWS) :])
            self.argue(case, "groups-failed", late, share=late)
            case.add(self.FAILED_REWARD_RISES_WEIGHT * view.reward_trend.learned, "reward-rises")
        if not case.evidence:
            return None
        case.first_step = reward.steps[0]
        case.show(reward, reward.steps[0], reward.steps[-1]).show(view.dead_readings, *dead.steps[:1], *dead.steps[-1:])
        return case

    def _gone(self, last: int, at_floor: list[bool]) -> bool:
        """Whether the last rows are at the floor for good, after others that were not."""
        n = len(at_floor)
        if last < max(self.GONE_ROWS, self.GONE_SHARE * n):
            return False
        before = n - last
        earned = before - sum(at_floor[:before])
        return bool((1 - earned / (before + 2)) ** last <= self.GONE_BY_CHANCE)

    def _all_solved(self, view: View, dead: Series, reward: Series) -> Candidate | None:
        n = len(reward)
        if not n or not len(dead):
            return None
        reward_trend = view.reward_trend
        m = stats.edge(n, self.END_SHARE)
        late, late_dead = (
            stats.mean(reward.values[-m:]),
            stats.mean(dead.values[-stats.edge(len(dead), self.END_SHARE) :]),
        )
        top = reward_trend.top or max(reward.values)
        if late <= 0 or top <= 0 or late < self.AT_TOP * top or late_dead < self.DEAD_AT_TOP:
            return None
        # A constant positive reward of unknown scale is the maximum only if the scale says so.
        if constant(reward.values) and reward_trend.top is None:
            return None
        if (
            constant(reward.values)
            and abs(late - 1.0) > self.NEXT_TO_ONE
            and len(view.history.parts()) != 1
            and n < self.FEW_ROWS
        ):
            return None
        case = Candidate("saturated-all-one-reward")
        from_start = reward.values[0] >= self.AT_TOP * top
        case.add(
            {1: self.REWARD_AT_TOP_WEIGHT, 2: self.TOP_TWO_ROWS_WEIGHT}.get(n, self.TOP_WEIGHT)
            if from_start
            else self.REWARD_AT_TOP_WEIGHT,
            "reward-at-top",
            value=late,
            top=top,
        )
        if not from_start:
            case.add(
                self.SOLVED_REWARD_RISES_WEIGHT * max(reward_trend.learned, self.LEAST_RISE),
                "reward-rises",
            )
            if reward_trend.learned >= self.LEARNED:
                case.severity = "info"
        case.setup = from_start
        start = tail_start(reward, lambda v: v >= self.AT_TOP * top)
        case.first_step = reward.steps[start]
        return case.show(reward, case.first_step, reward.steps[-1]).show(view.dead_readings, dead.steps[-1])

    def _mixed(self, view: View, dead: Series) -> Candidate:
        case = Candidate("reward-dead-groups")
        n = len(dead)
        m = max(1, n // 2)
        share, late = stats.mean(dead.values), stats.mean(dead.values[-m:])
        scale = self.DEAD_WEIGHT if n >= self.DEAD_ROWS else self.DEAD_WEIGHT_FEW
        if dead.name == metric.GRAD_NORM:
            # What stands still may be the gradient's own fault.
            scale *= self.DEAD_BY_STILLNESS
        case.add(
            scale * stats.ramp(self.DEAD_SHARE_WEIGHT * (share + late), *self.DEAD_SHARE_RANGE),
            "dead-share",
            share=late,
        )
        early = stats.mean(dead.values[: stats.edge(n, self.BEGIN_SHARE)])
        if n >= self.ROWS_OF_GROWTH and late - early > self.GROWTH_FROM and not view.reward_trend.near_top:
            self.argue(case, "dead-share-grows", late - early, early=early, late=late)
        self._fading(case, view)
        reward_trend = view.reward_trend
        if (
            share > self.MOSTLY_DEAD
            and reward_trend.reward.n >= self.ROWS_OF_FLAT
            and reward_trend.learned < self.NOT_LEARNED
            and reward_trend.near_top < self.NOT_NEAR_TOP
        ):
            case.add(
                self.REWARD_FLAT_WEIGHT
                * proven_flat(view.series(metric.REWARD, reward_trend.source), reward_trend.top),
                "reward-flat",
            )
        case.add(self.REWARD_RISES_WEIGHT * view.reward_trend.learned, "reward-rises")
        case.add_near_top(self.REWARD_NEAR_TOP_WEIGHT, view.reward_trend)
        if view.reward_trend.learned > self.IS_LEARNING and share > self.MOSTLY_DEAD:
            case.severity = "info"
        beyond = [i for i, v in enumerate(dead.values) if v >= self.MOSTLY_DEAD]
        tail = tail_start(dead, lambda v: v >= self.MOSTLY_DEAD)
        begin = tail if n - tail >= self.TAIL_SHARE * n else (beyond[0] if beyond else None)
        case.first_step = None if begin is None else dead.steps[begin]
        case.setup = begin == 0
        if case.first_step is not None:
            case.show(view.dead_readings, case.first_step, dead.steps[-1])
            case.show(view.series(metric.GRAD_NORM), dead.steps[-1])
        return case

    def _fading(self, case: Candidate, view: View) -> None:
        """Continuous rewards hardly ever tie: their contrast fades without a group being dead."""
        std = view.history.series(metric.REWARD_STD)
        if (
            len(std) < self.ROWS_OF_FADING
            or len(view.history.series(metric.ZERO_STD))
            or view.reward_trend.near_top > self.FADED_AT_TOP
        ):
            return
        early, late = ends(std)
        if 0 < late < early:
            self.argue(case, "contrast-fades", stats.ln(early / late), early=early, late=late)
