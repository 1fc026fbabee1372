"""Perfect answers share words with their own prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome, Status

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class PairsText(Check):
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
    alike = Message("most prompts have the same perfect answer", "大多数题目的标准答案相同")
    belong = Message(
        "{n} answers share more words with their own prompts than with others' (p = {p:.1g})",
        "{n} 个答案与自己的题比与别的题有更多共同的词（p = {p:.1g}）",
    )
    unknown = Message(
        "shared words do not tell whether {n} answers belong to their prompts (p = {p:.2g})",
        "由共同的词无法判断 {n} 个答案是否属于各自的题（p = {p:.2g}）",
    )
    _fix = Fix(
        "look at the rows of the evidence (--evidence): sort or join prompts and answers by key, and drop no line of "
        "one file alone",
        "查看证据中的几行（--evidence）：按键对齐或合并题目与答案，不要只删其中一个文件的行",
    )
    out_of_step = Message(
        "by the words they share, {matches} of {of} answers fit the prompt {lag:+d} rows away best (p = {p:.1g}), and "
        "{own} their own: rows are out of step",
        "按共同的词看，{of} 题中有 {matches} 题最相配的答案在 {lag:+d} 行处（p = {p:.1g}），在同一行的只有 {own} 题："
        "数据行错位",
        fix=_fix,
    )
    shuffled = Message(
        "by the words they share, {others} of {n} prompts have the answer that fits them best in another row, nearly "
        "each "
        "in one of its own (p = {p:.1g}), and their own fits no better than any (p = {own:.2g}): rows are shuffled",
        "按共同的词看，{n} 道题中有 {others} 道最相配的答案在别的行，而且几乎各在不同的行（p = {p:.1g}），自己行的答案"
        "并不比任意一个更相配（p = {own:.2g}）：数据行被打乱",
        fix=_fix,
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per task of single answers."""
        from levelhead.preflight.pairing import alike, judge, level_of, neighbours, word_fits
        from levelhead.tasks.base import SingleTurnTask

        for name, task in context.setup.tasks.items():
            if task.demonstrates or not isinstance(task, SingleTurnTask):
                continue
            rows = neighbours(context, name, task)
            if len(rows.prompts) < 2:
                continue
            if alike(rows):
                yield self.ok(self.alike, name)
                continue
            pairing = judge(word_fits(rows.prompts, rows.answers), rows, context.seed, level_of(context))
            status: Status = "pass" if pairing.key in ("belong", "unknown") else "fail"
            message = self.messages()[pairing.key]
            yield self.outcome(status, message, name, pairing.evidence if status == "fail" else {}, pairing.fields)
