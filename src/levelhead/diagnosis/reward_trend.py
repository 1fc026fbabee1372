"""How the reward of a run went, and whether a change of it is proven: what every other reading is judged by.

Low entropy, dead groups, long answers or gradient spikes mean one thing in a run whose reward rises and another in
a run whose reward does not.
"""

from __future__ import annotations

import math
import re
from typing import Literal

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.history import REWARD_PART, History, Series
from levelhead.diagnosis.trend import _SHORT, Height, Numbered, Trend, height_of, trend
from levelhead.metrics import held_out

ALL_DRAWN = metric.REDRAW_REWARD
"""Mean reward of all that was drawn, where groups without contrast then give way: what is kept stays in the middle."""
AT_TOP = 0.85
"""Share of the known maximum from which a reward stands near it."""
SOLVED = 0.95
"""The same from which nothing is left to be learnt."""
NOT_FAR = 0.7
"""The same for a few unlucky readings."""
HIGH = (0.6, 0.75)
"""Shares of the known maximum between which a reward comes to be called high."""
_EVAL_SCORE = re.compile(
    r"(?:^|[/_@ -])(?:rewards?|acc\w*|scores?|pass\w*|em|f1|success\w*|correct\w*|solve\w*|win\w*)(?:$|[/_@ -])",
    re.IGNORECASE,
)
_TASK_SCORE = re.compile(
    r"^(?:em|exact_match|acc|accuracy|bacc|f1|pass@?\d+|(?:ndcg|recall|precision|mrr|map)(?:@?\d+)?|success_rate|"
    r"win_rate|solve_rate|pass_rate)$",
    re.IGNORECASE,
)
"""Scores that no reward function is called by."""


class RewardTrend(Numbered):
    """How the reward of a run went: by its reward, its held-out scores, or the part that judges correctness.

    Args:
        history: The run.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self.source = self._pick()
        series = history.series(self.source)
        stds = history.series(metric.REWARD_STD).values
        positive = [v for v in stds if v > 0]
        scale = stats.median(positive) if self.source in (metric.REWARD, ALL_DRAWN) and positive else None
        self.reward = trend(series, scale)
        self.held_out = {s.name: trend(s, errors=self._errors(s.name)) for s in self._held_out()}

    def _pick(self) -> str:
        rewards = self._history.series(metric.REWARD)
        if len(self._history.series(ALL_DRAWN)) > self.NEARLY_ALL * max(len(rewards), 1):
            return ALL_DRAWN
        if len(rewards):
            return metric.REWARD
        best = self._history.parts("outcome") or self._history.parts() or self._held_out()
        return max(best, key=len).name if best else metric.REWARD

    def _held_out(self) -> list[Series]:
        curves = [
            s for s in self._history.matching(held_out.NUMBER.prefix) if len(s) >= 2 and _EVAL_SCORE.search(s.name)
        ]
        # A task's score sums up its other metrics.
        return [s for s in curves if s.name.endswith("/score")] or curves[: self.MOST_CURVES]

    def _errors(self, score: str) -> Series | None:
        """Standard errors of a held-out score, where they are logged beside it."""
        name = f"{score.removesuffix('/score')}/se"
        return self._history.series(name) if score.endswith("/score") else None

    @property
    def task_scores(self) -> dict[str, Trend]:
        """The task's own scores beside a reward made for training, where nothing is held out: they judge that reward.

        A score of the training batch is as noisy as its reward, so that its ups and downs alone say nothing.
        """
        if self.held_out or len(self._history.series(metric.REWARD)) < 2:
            return {}
        return {
            s.name: trend(s)
            for s in self._history.parts("outcome")
            if len(s) >= self.SCORE_ROWS and _TASK_SCORE.match(REWARD_PART.sub(r"\g<name>", s.name))
        }

    @property
    def has_signal(self) -> bool:
        """Whether there is any reward-like signal with enough readings to tell a trend from."""
        return self.reward.n >= _SHORT or bool(self.held_out)

    @property
    def began_at_top(self) -> bool:
        """Whether the reward stood near its known maximum all along: what is solved from the start cannot climb.

        One reading in eight may lie lower, though not far.
        """
        values, top = self._history.series(self.source).values, self.top
        if not values or top is None or top <= 0 or min(values) < NOT_FAR * top:
            return False
        return bool(sum(value < AT_TOP * top for value in values) <= max(1, len(values) // self.UNLUCKY))

    @property
    def solved(self) -> bool:
        """Whether rewards are all alike because they are all the best, the last readings' bad luck aside."""
        if self.near_top >= 1.0:
            return True
        newest, top = self._history.series(self.source).values[self.NEWEST :], self.top
        return self.began_at_top and top is not None and stats.median(newest) >= SOLVED * top

    @property
    def leapt(self) -> bool:
        """Whether the reward froze at one value after hardly any rows in which it moved: a leap, not a climb."""
        values = self._history.series(self.source).values
        frozen = stats.tail_run([v == values[-1] for v in values]) if values else 0
        if frozen < self.FROZEN or self.began_at_top:
            return False
        moving = [v for v in values[: len(values) - frozen] if v != values[0]]
        return bool(len(moving) < min(self.LEAP_ROWS, self.LEAP_SHARE * len(values)))

    @property
    def only_form(self) -> bool:
        """Whether nothing but the reward for the form ever moved, of several that were given."""
        parts = self._history.parts
        form, rest = parts("form"), [*parts("outcome"), *parts("other")]
        still = [len(s) >= self.STILL_ROWS and max(s.values) - min(s.values) <= 1e-9 for s in rest]
        return bool(form and rest) and all(still)

    @property
    def learned(self) -> float:
        """0 to 1: the reward (or the held-out score, which wins) rose and stayed up."""
        inner = self.reward.rise * (1 - self.reward.crash) * self._earned
        if self.held_out:
            longest = max(self.held_out.values(), key=lambda t: t.n)
            if longest.n >= self.EVALUATIONS and longest.rise < self.NO_RISE and longest.late < self.GOOD:
                inner *= self.CONTRADICTED
            rise = stats.mean([t.rise * (1 - t.crash) for t in self.held_out.values()])
            fall = stats.mean([max(t.fall, t.crash) for t in self.held_out.values()])
            return max(0.0, min(1.0, max(inner, rise) * (1 - fall)))
        return inner

    @property
    def _earned(self) -> float:
        """What a rise counts: little where it is a leap, or one of the form alone."""
        return self.NOT_EARNED if self.leapt or self.only_form else 1.0

    @property
    def second_half_rose(self) -> float:
        """0 to 1: the second half stands above the first quarter, whatever the last batches hold.

        A batch of few groups is as hard as its prompts: three hard ones in a row say little of the policy.
        """
        values = self._history.series(self.source).values
        n = len(values)
        if n < self.HALF_ROWS:
            return 0.0
        begin, rest = values[: int(self.BEGIN * n)], values[n // 2 :]
        error = stats.noise(values) * math.sqrt(1 / len(begin) + 1 / len(rest))
        gain = stats.mean(rest) - stats.mean(begin)
        matters = stats.ramp(gain / max(abs(stats.mean(begin)), self.reward.scale), *self.HALF_MATTERS)
        sure = max(gain / max(error, 1e-12), stats.kendall_z(values) if gain > 0 else 0.0)
        return stats.ramp(sure, *self.HALF_SURE) * matters * (1 - self.lost) * self._earned

    @property
    def lost(self) -> float:
        """0 to 1: the reward ended far below where it began or had been."""
        return max(self.reward.fall, self.reward.crash, self._lost_outside())

    def _lost_outside(self) -> float:
        """The same of the held-out scores alone."""
        return stats.mean([max(t.fall, t.crash) for t in self.held_out.values()]) if self.held_out else 0.0

    @property
    def top(self) -> float | None:
        """The reward's known maximum: the batch maximum where it is logged, 1 where all readings are in [0, 1]."""
        if best := self._history.series("reward/max").values:
            return max(best)
        values = self._history.series(self.source).values
        if values and min(values) >= 0 and self.SOME < max(values) <= self.ONE:
            return 1.0
        return self._top_of_parts()

    def _top_of_parts(self) -> float | None:
        """The number of named rewards, where each lies in [0, 1] and the total is their sum."""
        reward = self._history.series(metric.REWARD)
        parts = [s for s in self._history.matching(metric.PART_MEAN.prefix) if REWARD_PART.match(s.name)]
        if len(parts) < 2 or not len(reward) or any(len(s) != len(reward) for s in parts):
            return None
        if any(min(s.values) < self.BELOW_ZERO or max(s.values) > self.ONE for s in parts):
            return None
        gaps = [abs(sum(s.values[i] for s in parts) - total) for i, total in enumerate(reward.values)]
        return float(len(parts)) if stats.quantile(gaps, self.SUM_QUANTILE) < self.SUM_WITHIN * len(parts) else None

    @property
    def near_top(self) -> float:
        """0 to 1: how close the end stands to the known maximum, where it was climbed to and some answers are right."""
        top = None if self.leapt else self.top
        near = stats.ramp(self.reward.late / top, *self.NEAR_TOP) if top and top > 0 and self.reward.n else 0.0
        right = [stats.mean(s.values[-stats.edge(len(s)) :]) for s in self._history.parts("outcome")]
        return near * stats.ramp(max(right), *self.RIGHT) if right else near

    @property
    def holds(self) -> float:
        """0 to 1: the reward stands high and has lost little, or it has risen and still stands near its best.

        A run of which this is true is doing its work, whatever else is odd about it.
        """
        reward, height = self.reward, self._height()
        given_back = stats.ratio(max(0.0, reward.peak - reward.late), reward.peak - reward.early)
        risen = stats.ramp(self.learned, *self.RISEN) * stats.ramp(given_back, *self.KEPT) * (1 - self.lost)
        # Few readings of small batches fall by chance: what counts is what was lost of the height.
        slipped = stats.ramp(height.peak - height.late, *self.SLIPPED)
        lost = max(self._lost_outside(), max(reward.fall, reward.crash) * slipped)
        return max(stats.ramp(height.late, *HIGH) * (1 - lost), risen)

    def _height(self) -> Height:
        """Where the reward stands as a share of its known maximum, or the best part that judges the outcome does."""
        if self.leapt or self.only_form or not self.reward.n:
            return Height(0.0, 0.0)
        right = [s.values for s in self._history.parts("outcome") if min(s.values) >= 0 and max(s.values) <= self.ONE]
        values, top = self._history.series(self.source).values, self.top
        if right:
            return max((height_of(part, 1.0) for part in right), key=lambda height: height.late)
        return height_of(values, top) if top is not None and top > 0 else Height(0.0, 0.0)

    @property
    def shape(self) -> Literal["rising", "falling", "flat", "unknown"]:
        """The trend in one word."""
        if not self.has_signal:
            return "unknown"
        if self.lost > max(self.SHAPE, self.learned):
            return "falling"
        return "rising" if self.learned >= self.SHAPE else "flat"
