"""The judge's replies hold grades."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class JudgeGrades(Check):
    """Looks for a grade in each reply."""

    name = "judges/grades/TASK"
    needs = "rewards"
    proves = Message("The judge's replies hold grades.", "评判模型的回复含有分数。")
    how = Message(
        "Lets it grade perfect, empty and wrong answers to three prompts, or any answer where no perfect one is known.",
        "让它给三道题的标准答案、空回答和错误答案打分；没有已知标准答案时，给任意回答打分。",
    )
    cannot = Message("Nine replies do not measure a rare failure.", "九条回复测不出罕见的失败。")
    right = Message("all {count} replies of the judge hold a grade", "评判模型的 {count} 条回复都有分数")
    missing = Message(
        "{failed} of {count} replies of the judge hold no grade; the last one: {last!r}",
        "评判模型的 {count} 条回复中有 {failed} 条没有分数；最后一条：{last!r}",
        fix=Fix(
            "take a model that follows instructions, or raise tasks[].judge.max_tokens if its replies are cut before "
            "their last line, 'Grade: N' or 'Better: A'",
            "换一个能遵循指令的模型；如果回复在最后一行（'Grade: N' 或 'Better: A'）之前就被截断，则增大 "
            "tasks[].judge.max_tokens",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per judge that answers; a failure where most replies hold no grade."""
        from levelhead.preflight.judging import verdicts_of

        for task, grader in context.judged:
            for verdicts in (v for v in verdicts_of(context, task, grader) if not v.error):
                count, failed = len(verdicts.grades), verdicts.failed
                evidence = {"verdicts": count, "mean_grade": verdicts.means, "last_without_grade": verdicts.last}
                if not failed:
                    yield self.ok(self.right, verdicts.whose, evidence=evidence, count=count)
                    continue
                hopeless = failed * 2 > count or not {"perfect", "unknown"} & verdicts.means.keys()
                fields: dict[str, Any] = {"failed": failed, "count": count, "last": verdicts.last}
                yield self.outcome("fail" if hopeless else "warn", self.missing, verdicts.whose, evidence, fields)
