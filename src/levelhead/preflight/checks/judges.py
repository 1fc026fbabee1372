"""Judges grade answers of known worth: asked once per judge, for all checks of judges."""

from __future__ import annotations

import itertools
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from levelhead.errors import InputError, RewardError, first_line
from levelhead.preflight.check import Check, Context, Fix, Message, Outcome, Status
from levelhead.records import Prompt
from levelhead.rollout.draws import derive
from levelhead.tasks.base import Answer, SingleTurnTask

if TYPE_CHECKING:
    from levelhead.tasks.judges import JudgeGrader

ASKED = 3
"""Prompts of a task whose perfect, empty and wrong answers a judge grades."""
CANDIDATES = 24
"""Prompts whose perfect answers may serve as wrong ones."""
PATIENCE_S = 15.0
"""Longest wait for a silent endpoint: whoever checks sits in front of it."""
KINDS = ("perfect", "empty", "wrong", "unknown")
ANY = "I do not know."
"""Answer of unknown worth that a judge grades where nobody knows a perfect one."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What one judge made of answers of known worth.

    Attributes:
        whose: Task, and title of the judge where there are several.
        grades: (kind, grade) of each answer; the grade is ``None`` where the reply held none.
        error: Why there are none at all, in one line; empty where there are.
        fix: What to change then.
        fatal: Whether no judge of the task can be asked.
        cause: Kind of trouble, as ``authentication`` or ``outage``.
        last: Last reply without a grade.
    """

    whose: str
    grades: list[tuple[str, float | None]] = field(default_factory=list)
    error: str = ""
    fix: str = ""
    fatal: bool = True
    cause: str = ""
    last: str = ""

    @property
    def means(self) -> dict[str, float]:
        """Mean grade by kind, where there is one."""
        by_kind = {kind: [g for k, g in self.grades if k == kind and g is not None] for kind in KINDS}
        return {kind: sum(grades) / len(grades) for kind, grades in by_kind.items() if grades}

    @property
    def failed(self) -> int:
        """Replies that held no grade."""
        return sum(grade is None for _, grade in self.grades)


def verdicts_of(context: Context, task: SingleTurnTask, grader: JudgeGrader) -> list[Verdicts]:
    """Let the judges of a task grade answers of known worth, nine verdicts each; else three of any worth.

    Judges whose endpoint is of no use are not asked again by later checks, which go by the rules alone.
    """
    if task.name not in context.verdicts:
        name = task.name
        prompts = list(itertools.islice(task.prompts("train", derive(context.seed, "judges", name)), CANDIDATES))
        cases = judged_answers(task, prompts)
        answers = [answer for _, answer in cases]
        kinds = [kind for kind, _ in cases]
        if not grader.titles:
            gradings = [_asked(context, grader, name, kinds, grader.grade(answers, PATIENCE_S), fatal=True)]
        else:
            gradings = [
                _asked(context, grader, f"{name}/{t}", kinds, grader.grade_by(t, answers, PATIENCE_S), fatal=False)
                for t in grader.titles
            ]
        if gradings and all(verdicts.error for verdicts in gradings):
            grader.asks = False
        context.verdicts[name] = gradings
    return context.verdicts[task.name]


def _asked(
    context: Context,
    grader: JudgeGrader,
    whose: str,
    kinds: Sequence[str],
    grades: Coroutine[None, None, list[float | None]],
    *,
    fatal: bool,
) -> Verdicts:
    try:
        graded = list(zip(kinds, context.loop.run(grades), strict=True))
    except RewardError as error:
        return Verdicts(whose, error=first_line(error), fix=error.fix, fatal=fatal, cause=error.cause)
    except InputError as error:
        return Verdicts(whose, error=first_line(error))
    return Verdicts(whose, graded, last=grader.last_failure)


def judged_answers(task: SingleTurnTask, prompts: Sequence[Prompt]) -> list[tuple[str, Answer]]:
    """Return ``(kind, answer)`` of some prompts: perfect, empty, and the perfect answer to another; or any answer.

    The wrong answer is the one that the task's rules score lowest among the perfect answers to the other prompts.

    Args:
        task: Knows perfect answers, and scores by rules.
        prompts: The first few are tried; all lend their perfect answers.
    """
    perfect = {prompt.id: answers[0] for prompt in prompts if (answers := task.oracle(prompt))}
    if not perfect:
        return [("unknown", Answer(prompt, ANY)) for prompt in prompts[:ASKED]]
    cases: list[tuple[str, Answer]] = []
    for prompt in [prompt for prompt in prompts if prompt.id in perfect][:ASKED]:
        mine = perfect[prompt.id]
        others = [text for text in dict.fromkeys(perfect.values()) if text != mine]
        cases += [("perfect", Answer(prompt, mine)), ("empty", Answer(prompt, ""))]
        if others:
            wrong = min(others, key=lambda text: task.score(prompt, text).total)
            cases.append(("wrong", Answer(prompt, wrong)))
    return cases


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

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield a failure per judge that did not pass."""
        for task, grader in context.judged:
            for title, reasons in grader.refusals.items():
                yield self.fail(self.failed, f"{task.name}/{title}", title=title, reasons="; ".join(reasons))


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

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per judge that does not answer; a failure where no judge of the task can be asked."""
        for task, grader in context.judged:
            every = verdicts_of(context, task, grader)
            for verdicts in every:
                status: Status = "fail" if verdicts.fatal or all(v.error for v in every) else "warn"
                if verdicts.error and verdicts.fix:
                    evidence = {"cause": verdicts.cause}
                    fields = {"error": verdicts.error, "fix": verdicts.fix}
                    yield self.outcome(status, self.unusable, verdicts.whose, evidence=evidence, **fields)
                elif verdicts.error:
                    yield self.fail(self.misnamed, verdicts.whose, error=verdicts.error)


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

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per judge that answers; a failure where most replies hold no grade."""
        for task, grader in context.judged:
            for verdicts in (v for v in verdicts_of(context, task, grader) if not v.error):
                count, failed = len(verdicts.grades), verdicts.failed
                evidence = {"verdicts": count, "mean_grade": verdicts.means, "last_without_grade": verdicts.last}
                if not failed:
                    yield self.ok(self.right, verdicts.whose, evidence=evidence, count=count)
                    continue
                hopeless = failed * 2 > count or not {"perfect", "unknown"} & verdicts.means.keys()
                report = self.fail if hopeless else self.warn
                fields = {"failed": failed, "count": count, "last": verdicts.last}
                yield report(self.missing, verdicts.whose, evidence=evidence, **fields)


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

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per judge whose replies hold grades."""
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
