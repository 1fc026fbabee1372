"""Answers that do not depend on the prompt: one answer to everything."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Suspicion, View
from levelhead.diagnosis.history import Series
from levelhead.diagnosis.sameness import PREFIX, Sameness, judge, names, tells

_ALIKE, _FEW = 0.85, 0.5
"""Share of prompts with the same answer, and nats of entropy, of steps that count as alike."""


class ConstantAnswer:
    """One answer is given whatever is asked, and it is not the right one to everything."""

    codes = ("constant-answer",)

    def examine(self, view: View) -> Iterator[Suspicion]:
        """Read what was measured of the answers; without that, lengths, contrast and entropy that have all stopped."""
        measured = [column.name.removeprefix(PREFIX) for column in view.history.matching(PREFIX) if len(column)]
        cases = [self._of_task(view, task) for task in measured] if measured else [self._inferred(view)]
        yield from (case for case in cases if case is not None)

    def _of_task(self, view: View, task: str) -> Suspicion | None:
        series = {gauge: view.series(name) for gauge, name in names(task).items()}
        share, entropy = series["top_share"], series["entropy"]
        n = len(share)
        late = judge(task, _between(series, share.steps[-min(24, max(4, round(0.15 * n)), n)]))
        if late is None:
            return None
        # A batch of few rollouts is a small sample of what the policy answers.
        smooth = [stats.smooth(one.values, 4) for one in (share, entropy)]
        begin = _mostly_from([s >= _ALIKE and h <= _FEW for s, h in zip(*smooth, strict=False)])
        case = Suspicion("constant-answer")
        case.add(
            5.5 * late.strength, "answers-alike",
            task=task, share=late.share, entropy=late.entropy, information=late.information,
        )  # fmt: skip
        if not case.clues:
            return None
        first = share.steps[min(begin, n - 1)]
        rows = n - begin
        self._beside(case, late, _between(series, share.steps[0], first)["information"], rows)
        if rows < 6:
            case.add(-2.5 * stats.ramp(rows, 6, 2), "few-rows", rows=rows)
        case.first_step = first
        case.setup = begin == 0
        case.show(share, share.steps[0], case.first_step, share.steps[-1])
        return case.show(series["information"], share.steps[0], share.steps[-1]).show(series["reward"], share.steps[-1])

    def _beside(self, case: Suspicion, late: Sameness, before: Sequence[float], rows: int) -> None:
        """What perfect answers would be like, and what the answers told of the prompt before."""
        if late.perfect is not None:
            case.add(0.5, "answers-should-differ", share=late.perfect)
        told = max((before[i : i + 8] for i in range(max(1, len(before) - 7))), key=stats.mean)
        if tells(told):
            case.add(1.0, "answers-told-more", early=stats.mean(told), late=late.information)
        else:
            # Some find the best answer to all prompts first, and learn to tell them apart from there.
            case.add(-3.5 * stats.ramp(rows, 40, 10), "answers-never-told", rows=rows)

    def _inferred(self, view: View) -> Suspicion | None:
        """Other logs: the same length for every answer of every row, no contrast, and a reward that has stopped.

        None of these alone says so: short answers are often of one length, and a reward that has come to its top is one
        that was earned.
        """
        length = _fixed_length(view)
        dead, reward = view.dead, view.series(metric.REWARD, view.course.source)
        if length is None or len(dead) < 4 or len(reward) < 4:
            return None
        begin = max(length.steps[0], _since(dead, [value >= 0.95 for value in dead.values]))
        rows = sum(step >= begin for step in length.steps)
        if rows < 4:
            return None
        rewards = [value for step, value in zip(reward.steps, reward.values, strict=True) if step >= begin]
        case = Suspicion("constant-answer", first_step=begin, setup=begin <= view.history.first_step)
        case.add(2.6 * stats.ramp(rows, 3, 8), "length-same", length=length.values[-1])
        spread = max(rewards, default=0.0) - min(rewards, default=0.0)
        case.add(1.8 if spread <= 1e-6 else 0.6, "equal-rewards", rows=rows, low=min(rewards), high=max(rewards))
        entropy = view.entropy
        if len(entropy):
            late = stats.mean(entropy.values[-min(rows, len(entropy)) :])
            case.add(1.6 * stats.ramp(late, 0.03, 0.005) - 3.0 * stats.ramp(late, 0.05, 0.2), "entropy-low", late=late)
        cut = view.series(metric.CLIPPED_RATIO)
        if len(cut):
            share = stats.mean(cut.values[-min(rows, len(cut)) :])
            case.add(-5.0 * stats.ramp(share, 0.3, 0.8), "cut-share", share=share)
        case.add(-3.5 * stats.ramp(length.values[-1], 12, 4), "answers-are-short", length=length.values[-1])
        case.add(-6.0 * view.course.near_top, "reward-near-top", value=view.course.reward.late)
        # Where nothing can be earned at all, that is the finding, whatever is answered.
        case.add(-4.5 * (max(rewards) <= 1e-9), "reward-always", value=rewards[-1], rows=rows)
        return (
            case.show(length, begin, length.steps[-1]).show(reward, begin, reward.steps[-1]).show(dead, dead.steps[-1])
        )


def _between(series: Mapping[str, Series], first: float, end: float = math.inf) -> dict[str, Sequence[float]]:
    """The readings of each gauge from step ``first`` on, and before step ``end``."""
    return {
        gauge: [v for step, v in zip(one.steps, one.values, strict=True) if first <= step < end]
        for gauge, one in series.items()
    }


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


def _mostly_from(flags: Sequence[bool]) -> int:
    """First index from which nine of ten flags are true to the end; how many there are where none is."""
    start, misses = len(flags), 0
    for i in range(len(flags) - 1, -1, -1):
        if flags[i]:
            start = i
        else:
            misses += 1
            if misses > max(1, (len(flags) - i) // 10):
                break
    return start
