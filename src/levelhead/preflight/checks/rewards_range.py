"""Rewards lie where the task declares, from the worst answer to the perfect one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


SHORT_OF = 0.1
"""Share of the declared range by which a perfect answer may miss its top before it is a failure."""


class RewardsRange(Check):
    """Compares scores of known answers with the declared least and most reward."""

    name = "rewards/range/TASK"
    needs = "rewards"
    proves = Message(
        "A perfect answer gets the declared most, the worst the declared least, and nothing lies outside.",
        "标准答案得到声明的最大值，最差的得到最小值，没有超出范围的。",
    )
    how = Message(
        "Scores perfect, empty and wrong answers and compares with the range that the task declares.",
        "给标准答案、空回答和错误答案打分，与任务声明的范围相比。",
    )
    cannot = Message(
        "A function without tasks[].reward_range declares none. The worst answer may not be among those tried.",
        "没有 tasks[].reward_range 的函数没有声明范围；最差的回答可能不在试过的之中。",
    )
    undeclared = Message("the task declares no least and most reward", "任务没有声明奖励的最小值和最大值")
    right = Message("rewards lie from {low:g} to {high:g}", "奖励在 {low:g} 到 {high:g} 之间")
    outside = Message(
        "a reward of {reward:.4g} lies outside of the declared {low:g} to {high:g}",
        "奖励 {reward:.4g} 超出了声明的范围 {low:g} 到 {high:g}",
        fix=Fix("correct the reward, or what the task declares", "修正奖励，或修正任务声明的范围"),
    )
    unreachable = Message(
        "a perfect answer gets {reward:.4g} and the most is {high:g}: nobody can reach the top",
        "标准答案得 {reward:.4g}，而最大值为 {high:g}：谁也达不到最高分",
        fix=Fix("correct the reward or the perfect answer", "修正奖励或标准答案"),
    )
    no_floor = Message(
        "of {count} answers, empty ones and nonsense among them, none gets the declared least of {low:g} (the worst "
        "has {reward:.4g})",
        "{count} 个回答（包括空回答和胡乱的回答）中没有一个得到声明的最小值 {low:g}（最差的得 {reward:.4g}）",
        fix=Fix(
            "a floor that nothing reaches hides how bad an answer is: declare it",
            "没有回答能达到的下限看不出回答有多差：请声明真实的最小值",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per task that scores by rules."""
        from levelhead.preflight.known import known_answers, scores_of

        for name in context.scorable:
            probes = known_answers(context, name)
            if probes is None:
                continue
            scores = scores_of(context, probes, probes.answers)
            totals = [score.total for score in scores if score is not None]
            if probes.task.reward_range is None or not totals:
                yield self.ok(self.undeclared, name)
                continue
            low, high = probes.task.reward_range
            pairs = zip(probes.kinds, scores, strict=True)
            perfect = [s.total for kind, s in pairs if kind == "oracle" and s is not None]
            slack = 1e-6 * max(1.0, high - low)
            outside = [total for total in totals if not low - slack <= total <= high + slack]
            if outside:
                yield self.fail(self.outside, name, reward=outside[0], low=low, high=high)
            elif perfect and min(perfect) < high - slack:
                far = high - min(perfect) > SHORT_OF * (high - low)
                fields: dict[str, Any] = {"reward": min(perfect), "high": high}
                yield self.outcome("fail" if far else "warn", self.unreachable, name, {}, fields)
            elif min(totals) > low + slack:
                yield self.warn(self.no_floor, name, count=len(totals), low=low, reward=min(totals))
            else:
                yield self.ok(self.right, name, low=low, high=high)
