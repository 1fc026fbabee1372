"""The judge grades perfect answers above empty and wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class JudgeOrder(Check):
    """Compares the mean grades of the three kinds of answers."""

    name = "judges/order/TASK"
    needs = "rewards"
    proves = Message(
        "The judge grades perfect answers above empty and wrong ones.", "评判模型给标准答案的分数高于空回答和错误答案。"
    )
    how = Message("Compares the mean grades of the three kinds.", "比较三类回答的平均分数。")
    cannot = Message(
        "It does not measure how finely the judge tells good answers from better ones, nor how easily it is flattered.",
        "它不测量评判模型区分好与更好的能力，也不测量它是否容易被奉承。",
    )
    right = Message("the judge ranks perfect answers first: {grades}", "评判模型把标准答案排在最前：{grades}")
    wrong = Message(
        "the judge does not rank a perfect answer above all others: {grades}",
        "评判模型没有把标准答案排在其他之上：{grades}",
        fix=Fix(
            "take a stronger model as judge, or write tasks[].judge.rubric more plainly",
            "换一个更强的评判模型，或把 tasks[].judge.rubric 写得更明白",
        ),
    )

    unknown = Message(
        "no perfect answers are known, so whether the judge grades them above others is not tried",
        "没有已知的标准答案，因此未测试评判模型是否给它们更高的分",
        fix=Fix("give the task perfect answers (tasks[].oracle)", "为任务指定标准答案（tasks[].oracle）"),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per judge whose replies hold grades."""
        from levelhead.preflight.judging import verdicts_of

        for task, grader in context.judged:
            for verdicts in verdicts_of(context, task, grader):
                means = verdicts.means
                if "unknown" in means:
                    yield self.warn(self.unknown, verdicts.whose)
                if "perfect" not in means or verdicts.failed * 2 > len(verdicts.grades):
                    continue
                grades = ", ".join(f"{kind} {mean:.2f}" for kind, mean in means.items())
                if any(means.get(kind, float("-inf")) >= means["perfect"] for kind in ("empty", "wrong")):
                    yield self.fail(self.wrong, verdicts.whose, grades=grades)
                else:
                    yield self.ok(self.right, verdicts.whose, grades=grades)
