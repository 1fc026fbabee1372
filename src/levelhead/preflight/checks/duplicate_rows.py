"""Training rows do not repeat or contradict each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from levelhead.preflight.check import Check, Context, Fix, Message, Outcome
from levelhead.preflight.wording import asked, plain
from levelhead.records import Prompt
from levelhead.tasks.base import SingleTurnTask
from levelhead.tasks.mutations import EQUAL, scorer

ROWS = 20_000
"""Training rows that are compared."""
SCORED = 24
"""Pairs of rows that ask the same whose answers are scored under each other."""
MANY = 0.2
"""Share of rows that repeat another one from which it is named."""


class DuplicateRows(Check):
    """Compares rows that ask the same: their answers, and what each gets under the other."""

    name = "data/duplicates/TASK"
    needs = "rewards"
    proves = Message(
        "No two training rows ask the same and want different answers, and few rows repeat another.",
        "没有两行训练数据问题相同而答案矛盾，重复的行也很少。",
    )
    how = Message(
        "Groups 20,000 rows by what they ask, without case, white space and punctuation; where their answers differ, "
        "scores each under the other row.",
        "按去掉大小写、空白和标点后的内容给 20,000 行分组；答案不同时，把各自的答案放到另一行打分。",
    )
    cannot = Message(
        "Rows that ask the same in other words are not seen. Where a score costs calls elsewhere, answers are compared "
        "as texts.",
        "换了说法的相同问题看不出。打分需要调用外部服务时，只按文本比较答案。",
    )
    apart = Message(
        "of {rows} rows {repeated} repeat another, and none contradicts another",
        "{rows} 行中有 {repeated} 行与别的行重复，没有互相矛盾的",
    )
    contradicted = Message(
        "{count} of {rows} rows ask what another row asks and want another answer, such as {where}: {text!r} wants "
        "{one!r} and {other!r}",
        "{rows} 行中有 {count} 行与别的行问题相同而要求的答案不同，例如 {where}：{text!r} 要求 {one!r} 和 {other!r}",
        fix=Fix(
            "keep one answer per question, or let the reward accept all right ones",
            "每个问题只保留一个答案，或让奖励接受所有正确答案",
        ),
    )
    repeated_rows = Message(
        "{repeated} of {rows} rows repeat another one: a question counts as often as it comes",
        "{rows} 行中有 {repeated} 行与别的行重复：一道题出现几次就算几次",
        fix=Fix("drop the repetitions, unless they are weights", "如果不是有意加权，请去掉重复的行"),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task of single answers."""
        for name, task in context.scorable.items():
            if not isinstance(task, SingleTurnTask):
                continue
            prompts = list(itertools.islice(task.prompts("train", 0), ROWS))
            groups: dict[str, list[Prompt]] = {}
            for prompt in prompts:
                groups.setdefault(f"{prompt.chat!r}{plain(asked(prompt))}", []).append(prompt)
            repeated = len(prompts) - len(groups)
            odd = _contradictions(context, task, [group for group in groups.values() if len(group) > 1])
            if odd:
                yield self._finding(name, task, odd, len(prompts))
            elif repeated > MANY * len(prompts):
                yield self.warn(self.repeated_rows, name, rows=len(prompts), repeated=repeated)
            else:
                yield self.ok(self.apart, name, rows=len(prompts), repeated=repeated)

    def _finding(self, name: str, task: SingleTurnTask, odd: Sequence[tuple[Prompt, Prompt]], rows: int) -> Outcome:
        one, other = odd[0]
        fields: dict[str, Any] = {
            "count": len(odd),
            "rows": rows,
            "where": other.where,
            "text": other.texts[-1][-60:],
            "one": _answer(task, one)[:40],
            "other": _answer(task, other)[:40],
        }
        evidence = {"pairs": [[a.id, b.id] for a, b in odd[:8]]}
        return self.warn(self.contradicted, name, evidence=evidence, **fields)


def _answer(task: SingleTurnTask, prompt: Prompt) -> str:
    return (task.oracle(prompt) or [""])[0]


def _contradictions(
    context: Context, task: SingleTurnTask, groups: Sequence[Sequence[Prompt]]
) -> list[tuple[Prompt, Prompt]]:
    """Return pairs of rows that ask the same, of which one's perfect answer is not the other's."""
    pairs = [
        (group[0], prompt)
        for group in groups
        for prompt in group[1:]
        if task.canonical(prompt, _answer(task, prompt)) != task.canonical(prompt, _answer(task, group[0]))
    ]
    rules = task.rules
    if rules is None or not pairs:
        return pairs
    some = pairs[:SCORED]
    under = [other for _, other in some]
    score = scorer(rules, context.collector().completion_ids, context.loop.run)
    own = score(under, [_answer(task, other) for other in under])
    foreign = score(under, [_answer(task, one) for one, _ in some])
    odd = [pair for pair, a, b in zip(some, own, foreign, strict=True) if b < a - EQUAL]
    return odd if len(odd) < len(some) else pairs
