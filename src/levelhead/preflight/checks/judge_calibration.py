"""No judge is asked that failed its calibration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class JudgeCalibration(Check):
    """Reads what 'levelhead judge calibrate' measured."""

    name = "judges/calibration/TASK"
    needs = "data"
    proves = Message("No judge is asked that failed its calibration.", "没有使用未通过校准的评判模型。")
    how = Message(
        "Reads what 'levelhead judge calibrate' measured, where tasks[].judges.calibration names its file.",
        "读取 'levelhead judge calibrate' 的测量结果（tasks[].judges.calibration 指定的文件）。",
    )
    cannot = Message(
        "It asks nothing itself. What the judge has become since shows in the anchors that training asks about.",
        "它自己不提问；评判模型后来的变化由训练中的锚点问题显示。",
    )
    failed = Message(
        "the judge {title} failed its calibration: {reasons}",
        "评判模型 {title} 未通过校准：{reasons}",
        fix=Fix(
            "take it out of tasks[].judges.members, or calibrate again after changing it",
            "把它从 tasks[].judges.members 中去掉，或修改之后重新校准",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield a failure per judge that did not pass."""
        for task, grader in context.judged:
            for title, reasons in grader.refusals.items():
                yield self.fail(self.failed, f"{task.name}/{title}", title=title, reasons="; ".join(reasons))
