"""Contrast within groups: dead groups, all failed, all solved, and the deadlock in which nothing moves any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Suspicion, View, constant, ends, index_at, shift_at, unmoved
from levelhead.diagnosis.history import Series
from levelhead.diagnosis.trend import proven_flat

_DEAD = 0.99
_STILL = 1e-7


class DeadGroups:
    """Groups whose rewards are all equal: one code a side, and one for the mixture."""

    codes = ("reward-dead-groups", "no-learning-signal-all-zero-reward", "saturated-all-one-reward")

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Judge the share of dead groups, and which side they are on."""
        dead = view.dead
        reward = view.series(metric.REWARD, view.course.source)
        failing = self._all_failed(view, dead, reward)
        solved = self._all_solved(view, dead, reward)
        yield from (s for s in (failing, solved) if s)
        if len(dead):
            yield self._mixed(view, dead)

    def _all_failed(self, view: View, dead: Series, reward: Series) -> Suspicion | None:
        n = len(reward)
        if not n:
            return None
        case = Suspicion("no-learning-signal-all-zero-reward", setup=True)
        low = min(reward.values)
        at_floor = [abs(v - low) <= 1e-6 for v in reward.values]
        share = sum(at_floor) / n
        is_floor = low <= 1e-6
        alive = 1 - stats.mean(dead.values) if len(dead) else None
        if is_floor and share >= 0.95:
            known_dead = alive is not None and alive <= 0.05
            weight = {1: 4.2, 2: 5.0}.get(n, 6.5) if known_dead else {1: 0.5, 2: 2.8}.get(n, 2.6 + min(n, 10) * 0.2)
            if alive is not None and alive > 0.3:
                weight -= 4
            case.add(weight, "reward-always", value=low, rows=n)
        elif is_floor and low >= 0 and n >= 10 and stats.mean(reward.values) < 0.02 and alive is not None:
            case.add(4.0 * stats.ramp(1 - alive, 0.8, 0.95), "reward-almost-always", value=stats.mean(reward.values))
            case.add(-4.0 * view.course.learned, "reward-rises")
        failed = view.series(metric.ALL_FAILED)
        if len(failed):
            late = stats.mean(failed.values[-stats.edge(len(failed)) :])
            case.add(3.5 * stats.ramp(late, 0.8, 0.97), "groups-failed", share=late)
            case.add(-3.0 * view.course.learned, "reward-rises")
        if not case.clues:
            return None
        case.first_step = reward.steps[0]
        case.show(reward, reward.steps[0], reward.steps[-1]).show(dead, *dead.steps[:1], *dead.steps[-1:])
        return case

    def _all_solved(self, view: View, dead: Series, reward: Series) -> Suspicion | None:
        n = len(reward)
        if not n or not len(dead):
            return None
        course = view.course
        m = stats.edge(n, 0.2)
        late, late_dead = stats.mean(reward.values[-m:]), stats.mean(dead.values[-stats.edge(len(dead), 0.2) :])
        top = course.top or max(reward.values)
        if late <= 0 or top <= 0 or late < 0.97 * top or late_dead < 0.9:
            return None
        # A constant positive reward of unknown scale is the maximum only if the scale says so.
        if constant(reward.values) and course.top is None:
            return None
        if constant(reward.values) and abs(late - 1.0) > 0.02 and len(view.parts()) != 1 and n < 3:
            return None
        case = Suspicion("saturated-all-one-reward")
        from_start = reward.values[0] >= 0.97 * top
        case.add({1: 3.6, 2: 4.0}.get(n, 5.0) if from_start else 3.6, "reward-at-top", value=late, top=top)
        if not from_start:
            case.add(-3.2 * max(course.learned, 0.5), "reward-rises")
            if course.learned >= 0.5:
                case.severity = "info"
        case.setup = from_start
        start = _tail_start(reward, lambda v: v >= 0.97 * top)
        case.first_step = reward.steps[start]
        return case.show(reward, case.first_step, reward.steps[-1]).show(dead, dead.steps[-1])

    def _mixed(self, view: View, dead: Series) -> Suspicion:
        case = Suspicion("reward-dead-groups")
        n = len(dead)
        m = max(1, n // 2)
        share, late = stats.mean(dead.values), stats.mean(dead.values[-m:])
        scale = 4.4 if n >= 3 else 4.0
        if dead.name == metric.GRAD_NORM:
            # What stands still may be the gradient's own fault.
            scale *= 0.8
        case.add(scale * stats.ramp(0.5 * (share + late), 0.6, 0.97), "dead-share", share=late)
        early = stats.mean(dead.values[: stats.edge(n, 0.25)])
        if n >= 4 and late - early > 0.2 and not view.course.near_top:
            case.add(1.2 * stats.ramp(late - early, 0.2, 0.6), "dead-share-grows", early=early, late=late)
        self._fading(case, view)
        course = view.course
        if share > 0.6 and course.reward.n >= 6 and course.learned < 0.2 and course.near_top < 0.5:
            case.add(1.2 * proven_flat(view.series(metric.REWARD, course.source), course.top), "reward-flat")
        case.add(-4.0 * view.course.learned, "reward-rises")
        case.add(-1.5 * view.course.near_top, "reward-near-top", value=view.course.reward.late)
        if view.course.learned > 0.5 and share > 0.6:
            case.severity = "info"
        beyond = [i for i, v in enumerate(dead.values) if v >= 0.6]
        tail = _tail_start(dead, lambda v: v >= 0.6)
        begin = tail if n - tail >= 0.3 * n else (beyond[0] if beyond else None)
        case.first_step = None if begin is None else dead.steps[begin]
        case.setup = begin == 0
        if case.first_step is not None:
            case.show(dead, case.first_step, dead.steps[-1])
            case.show(view.series(metric.GRAD_NORM), dead.steps[-1])
        return case

    def _fading(self, case: Suspicion, view: View) -> None:
        """Continuous rewards hardly ever tie: their contrast fades without a group being dead."""
        std = view.history.series(metric.REWARD_STD)
        if len(std) < 6 or len(view.history.series(metric.ZERO_STD)) or view.course.near_top > 0.5:
            return
        early, late = ends(std)
        if 0 < late < early:
            case.add(
                2.6 * stats.ramp(stats.ln(early / late), stats.ln(5), stats.ln(30)),
                "contrast-fades",
                early=early,
                late=late,
            )


class Deadlock:
    """No spread, no loss, no gradient, for good: the policy always gives the same answer, and nothing moves it."""

    codes = ("deadlock",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Find the step from which everything stands still to the end, after a time when something moved."""
        dead = view.dead
        still = [view.series(name) for name in (metric.GRAD_NORM, metric.LOSS, "policy_loss")]
        still = [s for s in still if len(s)]
        if len(dead) < 4 or not still:
            return
        # A KL or entropy term may keep a loss from being zero; the gradient is what counts where it is logged.
        still = [s for s in still if s.name == metric.GRAD_NORM or abs(s.values[-1]) <= _STILL]
        if not still:
            return
        starts = [dead.steps[_tail_start(dead, lambda v: v >= _DEAD)]]
        starts += [series.steps[_tail_start(series, lambda v: abs(v) <= _STILL)] for series in still]
        begin = max(starts)
        frozen = sum(step >= begin for step in dead.steps)
        gradient = view.series(metric.GRAD_NORM)
        moved = any(v < _DEAD for v in dead.values) or any(v > _STILL for v in gradient.values)
        if dead.values[-1] < _DEAD or (len(gradient) and gradient.values[-1] > _STILL) or not moved:
            return
        case = Suspicion("deadlock")
        case.add(7.5 * stats.ramp(frozen, 1, max(6, 0.1 * len(dead))), "stands-still", rows=frozen, step=begin)
        if frozen < 5:
            case.add(-2.0, "few-rows", rows=frozen)
        case.add(-6.0 * self._by_chance(view, dead, begin, frozen), "dead-rows-are-usual", rows=frozen)
        course = view.course
        alive = sum(1 for step, v in zip(dead.steps, dead.values, strict=True) if step < begin and v < _DEAD)
        entropy = view.entropy
        open_minded = not len(entropy) or entropy.values[-1] > 0.05
        if course.near_top and alive >= 20 and open_minded:
            case.add(-4.0, "reward-rose-slowly-to-top", rows=alive)
            case.severity = "warning"
        shift = shift_at(view.series(metric.REWARD, course.source), begin)
        if shift and shift[1] < shift[0] and unmoved(view, begin):
            case.add(-5.0, "policy-unmoved")
        arrived = self._arrived(view, begin)
        if arrived > 0:
            case.add(-6.0 * arrived, "reward-near-top", value=course.reward.late)
            case.severity = "warning"
        if len(entropy) >= 4 and not constant(view.series(metric.REWARD, course.source).values[-frozen:]):
            early = stats.median(entropy.values[: max(2, len(entropy) // 3)])
            entropy_ratio = stats.ratio(entropy.values[-1], early)
            case.add(-3.0 * stats.ramp(entropy_ratio, 0.2, 0.6), "entropy-kept", late=entropy.values[-1])
        case.first_step = begin
        for name in (metric.REWARD, metric.ENTROPY, metric.GRAD_NORM, metric.LOSS):
            series = view.series(name)
            before = index_at(series, begin)
            if before:
                case.show_value(name, series.steps[before - 1], series.values[before - 1])
            case.show(series, begin)
        yield case

    def _arrived(self, view: View, begin: float) -> float:
        """0 to 1: how near its maximum the reward stood before all stood still: a run that had arrived, not a leap."""
        reward, top = view.series(metric.REWARD, view.course.source), view.course.top
        if view.course.began_at_top:
            return stats.ramp(reward.values[-1] / view.course.top, 0.85, 0.95) if view.course.top else 0.0
        before = [v for step, v in zip(reward.steps, reward.values, strict=True) if step < begin][-5:]
        if len(before) < 3 or not top or reward.values[-1] < 0.9 * top:
            return 0.0
        return stats.ramp(stats.mean(before) / top, 0.85, 0.95)

    def _by_chance(self, view: View, dead: Series, begin: float, frozen: int) -> float:
        """0 to 1: how well a run that is dead in most rows anyway explains a dead stretch at its end.

        Dead rows of one and the same reward at the very beginning are a hard start, and say nothing about later rows.
        """
        before = [v >= _DEAD for step, v in zip(dead.steps, dead.values, strict=True) if step < begin]
        first = before.index(False) if False in before else len(before)
        if not constant(view.series(metric.REWARD, view.course.source).values[:first]):
            first = 0
        usual = (sum(before[first:]) + 0.5) / (len(before) - first + 1)
        return stats.ramp(-frozen * stats.ln(min(usual, 0.999)), 8, 3)


class RewardErrors:
    """Reward functions that fail on more than half of a task's answers, which are then dropped."""

    codes = ("reward-errors",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Look at the share of dropped answers in the metrics, and at events where these have none."""
        worst: dict[float, float] = {}
        for series in view.history.matching(metric.REWARD_ERRORS):
            for step, share in zip(series.steps, series.values, strict=True):
                worst[step] = max(worst.get(step, 0.0), share)
        for event in view.events:
            at, evidence = event.get("step"), event.get("evidence")
            if event.get("code") != "reward-errors" or not isinstance(evidence, Mapping) or not isinstance(at, int):
                continue
            answers, dropped = evidence.get("answers"), evidence.get("dropped")
            if isinstance(answers, int) and isinstance(dropped, int) and 0 <= dropped <= answers and abs(at) < 1e15:
                worst[float(at)] = max(worst.get(float(at), 0.0), dropped / max(answers, 1))
        bad = sorted(step for step, share in worst.items() if share > 0.5)
        if not bad:
            return
        case = Suspicion("reward-errors", first_step=bad[0])
        case.add(5.2, "answers-dropped", steps=len(bad), share=max(worst.values()))
        yield case.show(view.history.series(metric.REWARD_ERRORS), bad[0], bad[-1])


def _tail_start(series: Series, holds: Callable[[float], bool]) -> int:
    """Index from which ``holds`` is true to the end, one exception in fifty readings allowed."""
    start, misses = len(series), 0
    for i in range(len(series) - 1, -1, -1):
        if holds(series.values[i]):
            start = i
        else:
            misses += 1
            if misses > (len(series) - i) // 50:
                break
    return min(start, len(series) - 1)
