"""Answers that do not depend on the prompt: one answer to everything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Candidate, Tuned, View
from levelhead.diagnosis.history import Series
from levelhead.diagnosis.sameness import PREFIX, Sameness, judge, names, tells
from levelhead.diagnosis.trend import start_of_end

_ALIKE, _FEW = 0.85, 0.5
"""Share of prompts with the same answer, and nats of entropy, of steps that count as alike."""

# Set by hand on the development logs (docs/doctor.md), unless a line says otherwise.
# Weights are log-odds; a range begins where nothing counts and ends where all does.
_ONE_IN = 10  # one exception in so many rows does not end a stretch


class ConstantAnswer(Tuned):
    """One answer is given whatever is asked, and it is not the right one to everything."""

    codes = ("constant-answer",)

    def examine(self, view: View) -> Iterator[Candidate]:
        """Read what was measured of the answers; without that, lengths, contrast and entropy that have all stopped."""
        measured = [column.name.removeprefix(PREFIX) for column in view.history.matching(PREFIX) if len(column)]
        cases = [self._of_task(view, task) for task in measured] if measured else [self._inferred(view)]
        yield from (case for case in cases if case is not None)

    def _of_task(self, view: View, task: str) -> Candidate | None:
        series = {gauge: view.series(name) for gauge, name in names(task).items()}
        share, entropy = series["top_share"], series["entropy"]
        n = len(share)
        newest = min(self.NEWEST_MOST, max(self.NEWEST_LEAST, round(self.NEWEST_SHARE * n)), n)
        late = judge(task, {gauge: one.between(share.steps[-newest]) for gauge, one in series.items()})
        if late is None:
            return None
        # A batch of few rollouts is a small sample of what the policy answers.
        smooth = [stats.smooth(one.values, self.BATCH_ROWS) for one in (share, entropy)]
        begin = start_of_end([s >= _ALIKE and h <= _FEW for s, h in zip(*smooth, strict=False)], _ONE_IN, 1)
        case = Candidate("constant-answer")
        case.add(
            self.ANSWERS_ALIKE_WEIGHT * late.strength, "answers-alike",
            task=task, share=late.share, entropy=late.entropy, information=late.information,
        )  # fmt: skip
        if not case.evidence:
            return None
        first = share.steps[min(begin, n - 1)]
        rows = n - begin
        self._beside(case, late, series["information"].between(share.steps[0], first), rows)
        if rows < self.FEW_ROWS:
            self.argue(case, "few-rows", rows, rows=rows)
        case.first_step = first
        case.setup = begin == 0
        case.show(share, share.steps[0], case.first_step, share.steps[-1])
        return case.show(series["information"], share.steps[0], share.steps[-1]).show(series["reward"], share.steps[-1])

    def _beside(self, case: Candidate, late: Sameness, before: Sequence[float], rows: int) -> None:
        """What perfect answers would be like, and what the answers told of the prompt before."""
        if late.perfect is not None:
            case.add(self.ANSWERS_SHOULD_DIFFER_WEIGHT, "answers-should-differ", share=late.perfect)
        informative = max(
            (before[i : i + self.TOLD_ROWS] for i in range(max(1, len(before) - self.TOLD_ROWS + 1))), key=stats.mean
        )
        if tells(informative):
            case.add(1.0, "answers-told-more", early=stats.mean(informative), late=late.information)
        else:
            # Some find the best answer to all prompts first, and learn to tell them apart from there.
            self.argue(case, "answers-never-told", rows, rows=rows)

    def _inferred(self, view: View) -> Candidate | None:
        """Other logs: the same length for every answer of every row, no contrast, and a reward that has stopped.

        None of these alone says so: short answers are often of one length, and a reward that has come to its top is one
        that was earned.
        """
        length = _fixed_length(view)
        dead, reward = view.dead, view.series(metric.REWARD, view.reward_trend.source)
        if length is None or len(dead) < self.INFERRED_ROWS or len(reward) < self.INFERRED_ROWS:
            return None
        begin = max(length.steps[0], _since(dead, [value >= self.DEAD for value in dead.values]))
        rows = sum(step >= begin for step in length.steps)
        if rows < self.INFERRED_ROWS:
            return None
        rewards = reward.between(begin)
        case = Candidate("constant-answer", first_step=begin, setup=begin <= view.history.first_step)
        self.argue(case, "length-same", rows, length=length.values[-1])
        spread = max(rewards, default=0.0) - min(rewards, default=0.0)
        case.add(
            self.EQUAL_REWARDS_WEIGHT if spread <= self.REWARD_SPREAD else self.REWARDS_WEIGHT,
            "equal-rewards",
            rows=rows,
            low=min(rewards),
            high=max(rewards),
        )
        entropy = view.entropy
        if len(entropy):
            late = stats.mean(entropy.values[-min(rows, len(entropy)) :])
            case.add(
                self.ENTROPY_LOW_WEIGHT * stats.ramp(late, *self.ENTROPY_LOW_RANGE)
                - self.ENTROPY_OPEN_WEIGHT * stats.ramp(late, *self.ENTROPY_OPEN_RANGE),
                "entropy-low",
                late=late,
            )
        cut = view.series(metric.CLIPPED_RATIO)
        if len(cut):
            share = stats.mean(cut.values[-min(rows, len(cut)) :])
            self.argue(case, "cut-share", share, share=share)
        self.argue(case, "answers-are-short", length.values[-1], length=length.values[-1])
        case.add_near_top(self.REWARD_NEAR_TOP_WEIGHT, view.reward_trend)
        # Where nothing can be earned at all, that is the finding, whatever is answered.
        case.add(self.REWARD_ALWAYS_WEIGHT * (max(rewards) <= 1e-9), "reward-always", value=rewards[-1], rows=rows)
        return (
            case.show(length, begin, length.steps[-1])
            .show(reward, begin, reward.steps[-1])
            .show(view.dead_readings, dead.steps[-1])
        )


def _fixed_length(view: View) -> Series | None:
    """Rows at the end in which the shortest and the longest answer have one length, the same throughout."""
    low, high = view.series(metric.MIN_LENGTH), view.series(metric.MAX_LENGTH)
    if not len(low) or low.steps != high.steps:
        return None
    same = [a == b == low.values[-1] for a, b in zip(low.values, high.values, strict=True)]
    tail = stats.tail_run(same)
    return Series(low.name, low.steps[-tail:], low.values[-tail:]) if tail else None


def _since(series: Series, flags: Sequence[bool]) -> float:
    """First step of the stretch of true flags at the end; beyond the last step where there is none."""
    tail = stats.tail_run(flags)
    return series.steps[-tail] if tail else series.steps[-1] + 1
