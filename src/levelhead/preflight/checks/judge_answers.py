"""The judge's endpoint answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome, Status

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class JudgeAnswers(Check):
    """Sends each judge nine requests."""

    name = "judges/answers/TASK"
    needs = "rewards"
    proves = Message("The judge's endpoint answers.", "评判模型的接口有回应。")
    how = Message(
        "Sends it nine requests, and waits fifteen seconds at most for a silent one.",
        "发送九个请求，对没有回应的最多等 15 秒。",
    )
    cannot = Message("It may still fail later, under load.", "以后负载高时仍可能失败。")
    unusable = Message("{error}", "{error}", fix=Fix("{fix}", "{fix}"))
    misnamed = Message(
        "{error}", "{error}", fix=Fix("set the variable, or name another one", "设置这个环境变量，或改用另一个")
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per judge that does not answer; a failure where no judge of the task can be asked."""
        from levelhead.preflight.judging import verdicts_of

        for task, grader in context.judged:
            every = verdicts_of(context, task, grader)
            for verdicts in every:
                status: Status = "fail" if verdicts.fatal or all(v.error for v in every) else "warn"
                if verdicts.error and verdicts.fix:
                    fields: dict[str, Any] = {"error": verdicts.error, "fix": verdicts.fix}
                    yield self.outcome(status, self.unusable, verdicts.whose, {"cause": verdicts.cause}, fields)
                elif verdicts.error:
                    yield self.fail(self.misnamed, verdicts.whose, error=verdicts.error)
