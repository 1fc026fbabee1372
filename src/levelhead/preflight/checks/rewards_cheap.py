"""No answer that is not right gets full marks, row by row."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from levelhead.preflight.check import Check, Context, Fix, Message, Outcome
from levelhead.records import Prompt
from levelhead.rollout.draws import derive
from levelhead.tasks.base import SingleTurnTask
from levelhead.tasks.mutations import FREE, HEDGED, KINDS, NONSENSE, TOLERATED, Marks, Score, rows_of, scorer, stand_in

ROWS, FEW = 256, 24
"""Training rows whose perfect answer is scored beside gibberish; rows of which all mutations are."""
PATIENCE_S = 6.0
"""Seconds that all of it may take, by the time that the first rows take."""
SOME = 0.1
"""Share of rows from which lists, parts and longer words are named; what holds no right answer is from the first."""


class RewardsCheap(Check):
    """Scores mutations of perfect answers, row by row."""

    name = "rewards/cheap/TASK"
    needs = "rewards"
    proves = Message(
        "No answer with nothing right in it gets full marks on any row, and no list, part or repetition of right "
        "answers does.",
        "没有一行会给毫无正确内容的回答满分，罗列、截取或重复正确答案也得不到。",
    )
    how = Message(
        "Takes the perfect answers of 256 rows apart and scores gibberish, empty and boxed nonsense, the prompt, other "
        "rows' answers, lists of options, parts, longer words and repetitions beside them, each row by itself. Without "
        "an oracle a column that scores like one stands in.",
        "拆开 256 行的标准答案，逐行给胡乱的文字、空回答、空答案框、题目本身、别行的答案、选项罗列、截取、更长的词"
        "和重复打分。没有 oracle 时用得分像标准答案的列代替。",
    )
    cannot = Message(
        "It tries texts that can be made without a model. What the policy itself finds is looked at by the last "
        "evaluation.",
        "它只试不用模型就能写出的文本；策略自己找到的取巧办法由最后的评测检查。",
    )
    nothing = Message(
        "no oracle, and no column that scores like one: only a declared tasks[].reward_range would tell which marks "
        "are full",
        "没有 oracle，也没有得分像标准答案的列：只有声明 tasks[].reward_range 才知道什么是满分",
    )
    no_oracle = Message(
        "no oracle: on {rows} rows neither gibberish nor an empty answer nor the prompt gets the declared most of "
        "{full:.4g}",
        "没有 oracle：{rows} 行中胡乱的文字、空回答和题目本身都没有得到声明的最大值 {full:.4g}",
    )
    declared = Message(
        "{kind} gets the declared most of {full:.4g} on {count} of {rows} rows, such as {where}: {text!r}",
        "{kind}在 {rows} 行中的 {count} 行得到声明的最大值 {full:.4g}，例如 {where}：{text!r}",
        fix=Fix(
            "let the reward pay nothing for what answers nothing, or declare the range that it has",
            "没有回答问题就不给分，或声明奖励真实的范围",
        ),
        words={"kind": KINDS},
    )
    right = Message(
        "of {rows} rows, none gives full marks for what is not right (as good as a perfect answer: {tolerated})",
        "{rows} 行中没有一行给不正确的回答满分（与标准答案同分的：{tolerated}）",
        words={"tolerated": KINDS},
    )
    _fix = Fix(
        "let the reward find one final answer, compare the whole of it, and pay nothing where it or the gold cannot be "
        "read",
        "让奖励只取一个最终答案并整体比较；答案或标准答案无法解析时不给分",
    )
    paid = Message(
        "full marks for {kind}: on {count} of {rows} rows, such as {where}, where {text!r} gets {score:.4g} and the "
        "perfect answer {perfect!r} gets {full:.4g}; others: {also}",
        "{kind}得满分：{rows} 行中有 {count} 行，例如 {where}：{text!r} 得 {score:.4g}，标准答案 {perfect!r} 得 "
        "{full:.4g}（其他：{also}）",
        fix=_fix,
        words={"kind": KINDS, "also": KINDS},
    )
    more = Message(
        "{kind} gets more than the right answer: on {count} of {rows} rows, such as {where}, where {text!r} gets "
        "{score:.4g} and the perfect answer {perfect!r} gets {full:.4g}; others: {also}",
        "{kind}比正确答案得分更高：{rows} 行中有 {count} 行，例如 {where}：{text!r} 得 {score:.4g}，标准答案 "
        "{perfect!r} 得 {full:.4g}（其他：{also}）",
        fix=Fix(
            "pay each part of an answer once, however often it comes",
            "回答的每一部分只付一次分，不管出现多少次",
        ),
        words={"kind": KINDS, "also": KINDS},
    )
    unpaid = Message(
        "the perfect answer gets no more than gibberish on {count} of {rows} rows, such as {where}, where {perfect!r} "
        "gets {full:.4g}: nothing can be learnt there; others: {also}",
        "{rows} 行中有 {count} 行的标准答案得分不高于胡乱的文字，例如 {where}：{perfect!r} 得 {full:.4g}：那里学不到东"
        "西（其他：{also}）",
        fix=Fix(
            "look whether the gold of these rows can be read by the reward; drop or correct them",
            "检查奖励能否解析这些行的标准答案；去掉或改正这些行",
        ),
        words={"kind": KINDS, "also": KINDS},
    )
    breaks = Message(
        "the reward breaks off at {kind}, which a policy may write: {error}; others: {also}",
        "遇到{kind}时奖励出错，而策略可能写出它：{error}（其他：{also}）",
        fix=Fix("give an answer that cannot be read the least reward", "无法解析的回答应给最低的奖励"),
        words={"kind": KINDS, "also": KINDS},
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task of single answers that scores by rules."""
        for name, task in context.scorable.items():
            if isinstance(task, SingleTurnTask) and task.rules is not None and not task.guesses:
                yield self._of_task(context, name, task.rules)

    def _of_task(self, context: Context, name: str, task: SingleTurnTask) -> Outcome:
        score = scorer(task, context.collector().completion_ids, context.loop.run)
        prompts = list(itertools.islice(task.prompts("train", derive(context.seed, "cheap", name)), ROWS))
        pairs = [(prompt, answer[0]) for prompt in prompts if (answer := task.oracle(prompt)) and answer[0].strip()]
        rows = rows_of(pairs or stand_in(score, prompts))
        if not rows:
            return self._without_perfect_answers(name, task, score, prompts[:FEW])
        marks = Marks(score, rows, few=FEW, patience_s=PATIENCE_S)
        findings = self._findings(marks)
        if findings:
            message, kind, fields = findings[0]
            also = [other for _, other, _ in findings[1:] if other != kind]
            fields |= {"kind": kind, "also": list(dict.fromkeys(also))}
            return self.warn(message, name, **fields)
        tried = {kind: marks.full(kind) for kind in TOLERATED}
        as_good = [kind for kind, (hits, count) in tried.items() if 2 * len(hits) > count]
        return self.ok(self.right, name, rows=len(rows), tolerated=as_good)

    def _without_perfect_answers(
        self, name: str, task: SingleTurnTask, score: Score, prompts: Sequence[Prompt]
    ) -> Outcome:
        """Hold what needs no perfect answer against the declared most."""
        if task.reward_range is None:
            return self.ok(self.nothing, name)
        high = task.reward_range[1]
        asked = [prompt.texts[-1] for prompt in prompts]
        for kind, texts in {"gibberish": [NONSENSE] * len(asked), "empty": [""] * len(asked), "prompt": asked}.items():
            marks = score(prompts, texts)
            hits = [i for i, mark in enumerate(marks) if mark >= high]
            if hits:
                i = hits[0]
                fields: dict[str, Any] = {"kind": kind, "count": len(hits), "rows": len(prompts)}
                where = prompts[i].where
                return self.warn(self.declared, name, **fields, where=where, text=texts[i][:80], full=high)
        return self.ok(self.no_oracle, name, rows=len(prompts), full=high)

    def _findings(self, marks: Marks) -> list[tuple[Message, str, dict[str, Any]]]:
        """Return what is wrong: message, kind of answer and fields, the plainest first."""
        findings = [(self.breaks, kind, {"error": error}) for kind, error in marks.broken.items()]
        for kind in (*FREE, *HEDGED):
            hits, tried = marks.full(kind)
            if len(hits) >= (1 if kind in FREE else max(1.0, SOME * tried)):
                findings.append((self.paid, kind, _shown(marks, kind, hits, tried)))
        for kind in (*HEDGED, *TOLERATED):
            hits, tried = marks.more(kind)
            if 2 * len(hits) > tried:
                findings.append((self.more, kind, _shown(marks, kind, hits, tried)))
        if unpaid := marks.unpaid():
            findings.append((self.unpaid, "gibberish", _shown(marks, "gibberish", unpaid, len(marks.rows))))
        return findings


def _shown(marks: Marks, kind: str, hits: Sequence[int], tried: int) -> dict[str, Any]:
    """Return the fields of a finding: the first row that shows it."""
    row, (text, score) = marks.rows[hits[0]], marks.example(kind, hits[0])
    return {
        "count": len(hits),
        "rows": tried,
        "where": row.prompt.where,
        "text": text[:80],
        "score": score,
        "perfect": row.perfect[:80],
        "full": marks.perfect(hits[0]),
    }
