"""Perfect answers belong to their prompts, by the words that they share and by their scores."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from levelhead.preflight.check import Check, Context, Fix, Message, Outcome
from levelhead.tasks.base import Answer, SingleTurnTask

if TYPE_CHECKING:
    from levelhead.preflight.pairing import Pairing, Rows
    from levelhead.training.fit import Floats


def _misplaced(by: str, by_zh: str) -> tuple[Message, Message]:
    """Return what is said of rows that are out of step and of rows that are shuffled, and by what that was seen."""
    fix = Fix(
        "look at the rows of the evidence (--evidence): sort or join prompts and answers by key, and drop no line of "
        "one file alone",
        "查看证据中的几行（--evidence）：按键对齐或合并题目与答案，不要只删其中一个文件的行",
    )
    out_of_step = Message(
        f"by {by}, {{matches}} of {{of}} answers fit the prompt {{lag:+d}} rows away best (p = {{p:.1g}}), and {{own}} "
        "their own: rows are out of step",
        f"按{by_zh}看，{{of}} 题中有 {{matches}} 题最相配的答案在 {{lag:+d}} 行处（p = {{p:.1g}}），在同一行的只有 "
        "{own} 题：数据行错位",
        fix=fix,
    )
    shuffled = Message(
        f"by {by}, {{others}} of {{n}} prompts have the answer that fits them best in another row, nearly each in one "
        "of its own (p = {p:.1g}), and their own fits no better than any (p = {own:.2g}): rows are shuffled",
        f"按{by_zh}看，{{n}} 道题中有 {{others}} 道最相配的答案在别的行，而且几乎各在不同的行（p = {{p:.1g}}），"
        "自己行的答案并不比任意一个更相配（p = {own:.2g}）：数据行被打乱",
        fix=fix,
    )
    return out_of_step, shuffled


class _Pairs(Check):
    """What is common to both ways of asking whether answers belong to their prompts."""

    alike = Message("most prompts have the same perfect answer", "大多数题目的标准答案相同")

    def _tasks(self, context: Context) -> Iterator[tuple[str, SingleTurnTask, Rows]]:
        """Yield the tasks of single answers with neighbouring rows, two at least."""
        from levelhead.preflight.pairing import neighbours

        for name, task in context.scorable.items():
            if isinstance(task, SingleTurnTask) and not task.demonstrates:
                rows = neighbours(context, name, task)
                if len(rows.prompts) > 1:
                    yield name, task, rows

    def _outcome(self, name: str, pairing: Pairing) -> Outcome:
        message = self.messages()[pairing.key]
        if pairing.key in ("out-of-step", "shuffled"):
            return self.fail(message, name, evidence=pairing.evidence, **pairing.fields)
        return self.ok(message, name, **pairing.fields)


class PairsText(_Pairs):
    """Looks for another order of the rows in which answers share more rare words with their prompts."""

    name = "pairs/text/TASK"
    needs = "data"
    proves = Message(
        "Perfect answers share rare words with their own prompts rather than with others'.",
        "标准答案与自己的题目（而不是别的题目）有共同的罕见词。",
    )
    how = Message(
        "A permutation test over shared words, weighted by rarity, on neighbouring rows.",
        "对相邻的数据行，按罕见程度加权共同的词，做置换检验。",
    )
    cannot = Message(
        "Answers that share no words with their prompts say nothing. In thousands of rows it sees a shift rather than "
        "a shuffle.",
        "与题目没有共同词的答案什么也说明不了。数据有上万行时，它能看出错位，较难看出打乱。",
    )
    belong = Message(
        "{n} answers share more words with their own prompts than with others' (p = {p:.1g})",
        "{n} 个答案与自己的题比与别的题有更多共同的词（p = {p:.1g}）",
    )
    unknown = Message(
        "shared words do not tell whether {n} answers belong to their prompts (p = {p:.2g})",
        "由共同的词无法判断 {n} 个答案是否属于各自的题（p = {p:.2g}）",
    )
    out_of_step, shuffled = _misplaced("the words they share", "共同的词")

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task of single answers."""
        from levelhead.preflight.pairing import alike, judge, level_of, word_fits

        for name, _, rows in self._tasks(context):
            if alike(rows):
                yield self.ok(self.alike, name)
                continue
            pairing = judge(word_fits(rows.prompts, rows.answers), rows, context.seed, level_of(context))
            yield self._outcome(name, pairing)


PATIENCE_S = 0.1
"""Seconds that scoring answers under other prompts may take, by the time that one row takes."""
DOUBT_S = 3.0
"""The same where they do not score more under their own."""
LEAST = 20
"""Rows that are scored at least, where that takes no more than ``DOUBT_S``."""


class PairsScores(_Pairs):
    """Scores neighbouring rows' answers under each other's prompts."""

    name = "pairs/scores/TASK"
    needs = "rewards"
    proves = Message(
        "Perfect answers score better under their own prompts than under others'.",
        "标准答案在自己的题下比在别的题下得分更高。",
    )
    how = Message(
        "Scores answers under permuted prompts: a permutation test with 999 permutations.",
        "把答案放到别的题目下打分：999 次置换的检验。",
    )
    cannot = Message(
        "Where most prompts have one answer, nothing is compared; nor are answers and a reward shuffled alike.",
        "大多数题目答案相同时无从比较；答案与奖励以同样方式打乱也看不出来。",
    )
    costly = Message(
        "a score costs calls elsewhere, so answers are not scored under other prompts",
        "打分需要调用外部服务，因此没有把答案放到别的题目下打分",
    )
    slow = Message(
        "rewards are too slow to score answers under other prompts", "奖励太慢，没有把答案放到别的题目下打分"
    )
    silent = Message("rewards do not depend on the pairing of {n} rows", "{n} 行的奖励与题目和答案是否相配无关")
    belong = Message(
        "{n} answers score more under their own prompts than under others' (p = {p:.1g})",
        "{n} 个答案在自己的题下比在别的题下得分更高（p = {p:.1g}）",
    )
    unknown = Message(
        "scores do not tell whether {n} answers belong to their prompts (p = {p:.2g})",
        "由得分无法判断 {n} 个答案是否属于各自的题（p = {p:.2g}）",
    )
    out_of_step, shuffled = _misplaced("score", "得分")

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task of single answers."""
        from levelhead.preflight.pairing import alike

        for name, task, rows in self._tasks(context):
            if task.rules is None:
                yield self.ok(self.costly, name)
            elif alike(rows):
                yield self.ok(self.alike, name)
            else:
                yield self._outcome(name, self._pairing(context, task.rules, rows))

    def _pairing(self, context: Context, rules: SingleTurnTask, rows: Rows) -> Pairing:
        """Score a few rows, and all of them where these leave a doubt that can be afforded."""
        from levelhead.preflight.pairing import Pairing, judge, level_of

        collector, n = context.collector(), len(rows.prompts)
        tokens = [collector.completion_ids(p, text) for p, text in zip(rows.prompts, rows.answers, strict=True)]

        def scored(size: int, some: Sequence[int]) -> Floats:
            answers = [Answer(rows.prompts[i], rows.answers[j], tokens[j]) for i in some for j in range(size)]
            scores = context.loop.run(rules.score_batch(answers))
            totals = [math.nan if score is None else score.total for score in scores]
            return np.array(totals, dtype=np.float64).reshape(len(some), size)

        scored(n, [0])  # whatever is only slow at first
        start = time.perf_counter()
        scored(n, [n - 1])
        each = (time.perf_counter() - start) / n
        size = min(n, max(LEAST, math.isqrt(int(PATIENCE_S / max(each, 1e-7)))))
        if each * size**2 > DOUBT_S:
            return Pairing("slow", {})
        fit_nn = scored(size, range(size))
        if np.isnan(fit_nn).any() or np.ptp(fit_nn) == 0:
            return Pairing("silent", {"n": size})
        level = level_of(context)
        pairing = judge(fit_nn, rows.first(size), context.seed, level)
        if pairing.key == "unknown" and size < n and each * n**2 <= DOUBT_S:
            pairing = judge(np.nan_to_num(scored(n, range(n)), nan=-1e9), rows, context.seed, level)
        return pairing
