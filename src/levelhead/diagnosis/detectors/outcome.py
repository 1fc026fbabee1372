"""What the reward hides: parts of it, held-out scores or tasks that fall while it rises."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Candidate, Tuned, View
from levelhead.diagnosis.history import SIGNALS, Series
from levelhead.diagnosis.trend import Trend, ends, trend
from levelhead.metrics import held_out

_PERPLEXITY = re.compile(r"perplexity|(?:^|[/_ -])ppl(?:$|[/_ -])", re.IGNORECASE)


class RewardHacking(Tuned):
    """The reward rises while what it stands for falls."""

    codes = ("reward-hacking",)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Compare the total and the form rewards with outcome, held-out score, validity and length."""
        case = Candidate("reward-hacking")
        gain, winner = self._gain(view)
        for series in [*view.history.parts("outcome"), view.series(metric.VALIDITY)]:
            if len(series) >= self.ROWS and series.name != (winner.name if winner else ""):
                self._loser(case, series, gain, winner)
        self._held_out(case, view)
        self._fluency(case, view)
        self._shortcuts(case, view)
        if case.evidence:
            yield case

    def _shortcuts(self, case: Candidate, view: View) -> None:
        """What the last evaluation saw of the best-paid answers."""
        for event in view.events:
            evidence = event.get("evidence")
            paid = evidence.get("shortcut") if isinstance(evidence, Mapping) else None
            if event.get("code") == "reward-hacking" and isinstance(paid, Mapping):
                case.add(self.SHORTCUT_WEIGHT, "paid-without-being-right", share=float(paid.get("share", 0.0)))

    def _gain(self, view: View) -> tuple[float, Series | None]:
        """The surest rise among the total reward and the form rewards."""
        best: tuple[float, Series | None] = (0.0, None)
        for series in [view.series(metric.REWARD), *view.history.parts("form"), *view.history.parts("other")]:
            if len(series) >= self.ROWS:
                strength = self._one_way(series, up=True)
                if strength > best[0]:
                    best = (strength, series)
        return best

    def _loser(self, case: Candidate, series: Series, gain: float, winner: Series | None) -> None:
        early, late = ends(series, self.END_SHARE)
        if early < self.NOTHING_TO_LOSE or winner is None or gain < self.NO_GAIN:
            return
        down = self._one_way(series, up=False) * stats.ramp((early - late) / max(abs(early), 1e-9), *self.LOSS_RANGE)
        weight = self.PART_WEIGHT * down * gain
        if weight > 1:
            case.add(
                weight, "part-falls-while-other-rises", falls=series.name, rises=winner.name, early=early, late=late
            )
            case.first_step = case.first_step if case.first_step is not None else self._leaves(series, early, late)
            case.show(series, series.steps[0], series.steps[-1]).show(winner, winner.steps[0], winner.steps[-1])

    def _held_out(self, case: Candidate, view: View) -> None:
        trends = view.reward_trend
        reward = view.series(metric.REWARD, trends.source)
        for name, held in (trends.held_out or trends.task_scores).items():
            down = max(held.fall, held.crash)
            # A reward that goes down too, once all is lost, had still risen when the score broke.
            n = sum(step <= held.drop_step for step in reward.steps)
            rise = max(trends.reward.rise, trend(Series(reward.name, reward.steps[:n], reward.values[:n])).rise)
            weight = self.HELD_OUT_WEIGHT * rise * down
            if weight > 1:
                case.add(weight, "held-out-falls-while-reward-rises", metric=name, early=held.early, late=held.late)
                case.first_step = case.first_step if case.first_step is not None else held.drop_step
                case.show(view.history.series(name), held.peak_step, held.drop_step)
                return

    def _fluency(self, case: Candidate, view: View) -> None:
        """The text itself gets worse: its perplexity under a model that is not trained multiplies."""
        gain = max(view.reward_trend.reward.rise, view.reward_trend.near_top, view.reward_trend.learned)
        for series in view.history.matching(held_out.NUMBER.prefix):
            if not _PERPLEXITY.search(series.name) or len(series) < self.ROWS or min(series.values) <= 0:
                continue
            early, late = ends(series)
            weight = self.PERPLEXITY_WEIGHT * gain * stats.ramp(stats.ln(late / early), *self.PERPLEXITY_RANGE)
            if weight > 1:
                case.add(weight, "perplexity-rises-with-reward", metric=series.name, early=early, late=late)
                case.first_step = self._leaves(series, early, late)
                case.show(series, series.steps[0], series.steps[-1])
                return

    def _one_way(self, series: Series, up: bool) -> float:
        """0 to 1: how surely the series goes one way; three rows that all do are worth 0.8."""
        sign = 1 if up else -1
        if len(series) < self.FEW_ROWS:
            moves = [sign * (b - a) for a, b in zip(series.values, series.values[1:], strict=False)]
            total = sign * (series.values[-1] - series.values[0])
            backward = -sum(m for m in moves if m < 0)
            size = abs(total) / max(abs(series.values[0]), 1e-9)
            if total <= 0:
                return 0.0
            forward = stats.ramp(1 - backward / max(total, 1e-12), *self.BACKWARD_RANGE)
            return float(forward * stats.ramp(size, *self.SIZE_RANGE) * self.FEW_ROWS_MOST)
        judged = trend(series)
        z = stats.kendall_z(series.values) * sign
        return max(judged.rise if up else judged.fall, 0.0) * stats.ramp(z, *self.ONE_WAY_RANGE)

    def _leaves(self, series: Series, early: float, late: float) -> float:
        """First step at which the series has covered a third of its way from ``early`` to ``late``."""
        level = early + (late - early) / self.LEFT
        for step, value in zip(series.steps, series.values, strict=True):
            if (value - level) * math.copysign(1, late - early) >= 0:
                return step
        return series.steps[-1]


class FallingStratum(Tuned):
    """One kind of question is given up while the task's mean reward rises."""

    codes = ("stratum-falls",)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Follow each stratum of each task: what it earns, and whether the common answer gains on right ones."""
        for success in view.history.matching(metric.STRATUM_SUCCESS.prefix):
            task, _, stratum = success.name.removeprefix(metric.STRATUM_SUCCESS.prefix).partition("/")
            names = (metric.STRATUM_COMMON.of(task, stratum), metric.STRATUM_REWARD.of(task, stratum))
            common, earned = map(view.history.series, names)
            newest = success.steps[-self.WINDOW :][0]
            reward = view.series(metric.REWARD_BY_TASK.of(task), metric.REWARD).between(newest)
            if len(success) >= self.ROWS and len(reward) >= self.ROWS:
                case = self._case(task, stratum, view, reward, (success, common, earned))
                if case.evidence:
                    yield case

    def _case(
        self, task: str, stratum: str, view: View, reward: list[float], measured: tuple[Series, Series, Series]
    ) -> Candidate:
        success, common, earned = (series.values[-self.WINDOW :] for series in measured)
        rises = stats.ramp(stats.slope(reward).errors, *self.RISES_RANGE)
        right, shortcut, pay = stats.slope(success), stats.slope(common), stats.slope(earned)
        gains = stats.slope([c - s for c, s in zip(common, success, strict=True)])
        unit = max(stats.mean(view.series(metric.REWARD_STD).values[-self.WINDOW :]), 1e-9)
        holds = stats.ramp(right.errors, *self.HOLDS_RANGE)
        taken = (1 - holds) * self._strength(view, gains.errors, gains.late - gains.early)
        lost = self._strength(view, -pay.errors, (pay.early - pay.late) / unit)
        case = Candidate("stratum-falls")
        where = {"task": task, "stratum": stratum}
        if taken >= lost:
            case.add(
                self.WEIGHT * rises * taken, "common-answer-gains", **where,
                early=_share(shortcut.early), late=_share(shortcut.late),
                before=_share(right.early), after=_share(right.late),
            )  # fmt: skip
        else:
            case.add(self.WEIGHT * rises * lost, "stratum-earns-less", **where, early=pay.early, late=pay.late)
        steps = measured[0].steps[-self.WINDOW :]
        case.first_step = steps[0]
        for series in measured:
            case.show(series, steps[0], steps[-1])
        return case

    def _strength(self, view: View, errors: float, size: float) -> float:
        """How surely something was lost: who looks often sees a chance fall once."""
        looks = self.LOOKS_COST * stats.ln(max(view.rows, self.LOOKS_FROM) / self.LOOKS_FROM)
        return stats.ramp(errors - looks, *self.SURE_RANGE) * stats.ramp(size, *self.LOST_RANGE)


class TaskBalance(Tuned):
    """Several objectives in one run: one starves, or their gradients pull against each other."""

    codes = ("task-imbalance", "gradient-conflict")

    def examine(self, view: View) -> Iterator[Candidate]:
        """Compare the tasks' own rewards, and the cosine of their gradients where it is logged."""
        tasks = [
            s
            for s in view.history.matching(metric.REWARD_BY_TASK.prefix)
            if s.name not in SIGNALS and len(s) >= self.ROWS_OF_A_TASK
        ]
        if len(tasks) >= 2:
            yield self._imbalance(tasks)
        cosines = [
            s
            for s in [*view.history.matching("gradients/cosine"), *view.history.matching(metric.MERGE_COSINE.prefix)]
            if len(s) >= self.ROWS_OF_COSINE
        ]
        for cosine in cosines[:1]:
            late = stats.median(cosine.values[-stats.edge(len(cosine), self.END_SHARE) :])
            case = Candidate(
                "gradient-conflict",
                first_step=next((s for s, v in zip(cosine.steps, cosine.values, strict=True) if v < 0), None),
            )
            self.argue(case, "gradients-oppose", -late, cosine=late)
            case.add(self.REWARD_RISES_WEIGHT * view.reward_trend.learned, "reward-rises")
            yield case.show(cosine, cosine.steps[0], cosine.steps[-1])

    def _imbalance(self, tasks: list[Series]) -> Candidate:
        trends: list[tuple[Series, Trend]] = [(s, trend(s)) for s in tasks]
        worst, fallen = max(trends, key=lambda pair: max(pair[1].fall, pair[1].crash))
        best, risen = max(trends, key=lambda pair: pair[1].rise)
        case = Candidate("task-imbalance", first_step=fallen.drop_step)
        loss = max(fallen.fall, fallen.crash)
        if worst is not best:
            case.add(
                self.TASK_FALLS_WHILE_OTHER_RISES_WEIGHT * loss * max(risen.rise, self.LEAST_RISE),
                "task-falls-while-other-rises",
                falls=worst.name,
                rises=best.name,
            )
        case.show(worst, worst.steps[0], worst.steps[-1])
        return case.show(best, best.steps[0], best.steps[-1])


def _share(value: float) -> float:
    """A share off a fitted line, which may lie a little beyond 0 or 1."""
    return min(max(value, 0.0), 1.0)
