"""Prompts do not hold their own answers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from levelhead.preflight.check import Check, Context, Fix, Message, Outcome
from levelhead.preflight.wording import asked
from levelhead.tasks.base import SingleTurnTask
from levelhead.tasks.mutations import forms_of

ROWS = 512
"""Training rows that are looked at."""
FEWEST, SHARE = 5, 0.02
"""Prompts that must show their answer at one place, at least, and their share of all."""
EXACT = 0.9
"""Share of the texts at that place that must be the answer."""
BY_CHANCE = 5
"""Other rows' answers that each prompt is searched for."""
WORDS = 4
"""Words before an answer that may announce it."""
_ANNOUNCED = (
    r"(?:assistant|answer|solution|hint|truth|label|gold|target|expected|correct|output|result|reply|response|"
    r"答案|解答|标签|正确|提示|结果).{0,24}(?:[:：=>|\"'(（\[{]|\bis|是|为)$|^\W+$"
)


class Place(NamedTuple):
    """A place in the prompts where answers stand.

    Attributes:
        before: Words in front of them.
        rows: Prompts that show their own answer there.
    """

    before: str
    rows: list[int]


class AnswerInPrompt(Check):
    """Looks for perfect answers in their own prompts, always behind the same words."""

    name = "data/answer-in-prompt/TASK"
    needs = "data"
    proves = Message(
        "No words of the prompts are regularly followed by the prompt's own answer.",
        "题目中没有哪几个词后面总是跟着这道题自己的答案。",
    )
    how = Message(
        "Searches 512 prompts for their own answers and for those of other rows, and looks what stands before them.",
        "在 512 条提示词中查找自己的答案和别行的答案，并看它们前面是什么。",
    )
    cannot = Message(
        "An answer that is put in other words is not seen, nor one at a place that changes from row to row, as that of "
        "options and passages does.",
        "换了说法的答案看不出；位置逐行变化的（如选项和原文中的答案）也不算。",
    )
    apart = Message(
        "{share:.0%} of {rows} prompts hold their answer ({chance:.0%} hold another row's), never at a place of its "
        "own",
        "{rows} 条提示词中有 {share:.0%} 含自己的答案（{chance:.0%} 含别行的），没有固定的位置",
    )
    shown = Message(
        "the answer stands in {count} of {rows} prompts behind the words {before!r} ({chance:.0%} of prompts hold "
        "another row's answer): it can be copied, such as {answer!r} of {where}",
        "{rows} 条提示词中有 {count} 条的答案就在 {before!r} 之后（含别行答案的占 {chance:.0%}）：可以照抄，例如 "
        "{where} 的 {answer!r}",
        fix=Fix(
            "take the answer out of the prompt (a hint, a label, metadata that came along)",
            "从提示词中去掉答案（提示、标签或一同带入的元数据）",
        ),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task of single answers that are known."""
        for name, task in context.setup.tasks.items():
            if isinstance(task, SingleTurnTask) and not task.demonstrates:
                yield from self._of_task(name, task)

    def _of_task(self, name: str, task: SingleTurnTask) -> Iterator[Outcome]:
        some = itertools.islice(task.prompts("train", 0), ROWS)
        pairs = [(prompt, answer[0]) for prompt in some if (answer := task.oracle(prompt)) and answer[0].strip()]
        if len(pairs) < FEWEST:
            return
        texts = [" ".join(asked(prompt, roles=True).split()) for prompt, _ in pairs]
        answers = [" ".join(form.said.split()) for _, answer in pairs for form in forms_of([answer])]
        own, chance = _shares(texts, answers)
        place = _place(texts, answers)
        fields: dict[str, Any] = {"rows": len(pairs), "chance": chance}
        if place is None:
            yield self.ok(self.apart, name, share=own, **fields)
            return
        row = place.rows[0]
        fields |= {"count": len(place.rows), "before": place.before, "answer": answers[row][:60]}
        evidence = {"prompts": [pairs[i][0].id for i in place.rows[:8]]}
        yield self.warn(self.shown, name, evidence=evidence, where=pairs[row][0].where, **fields)


def _found(text: str, answer: str) -> list[int]:
    """Return where an answer stands in a text, as words of its own."""
    edges = r"(?<!\w)" if answer[:1].isalnum() else "", r"(?!\w)" if answer[-1:].isalnum() else ""
    return [m.start() for m in re.finditer(edges[0] + re.escape(answer) + edges[1], text, re.IGNORECASE)]


def _shares(texts: Sequence[str], answers: Sequence[str]) -> tuple[float, float]:
    """Return the shares of prompts that hold their own answer, and that hold another one."""
    n = len(texts)
    own = sum(bool(_found(text, answer)) for text, answer in zip(texts, answers, strict=True)) / n
    pairs = [(i, (i + 1 + k * n // BY_CHANCE) % n) for i in range(n) for k in range(BY_CHANCE)]
    others = [bool(_found(texts[i], answers[j])) for i, j in pairs if answers[i].casefold() != answers[j].casefold()]
    return own, sum(others) / len(others) if others else 1.0


def _place(texts: Sequence[str], answers: Sequence[str]) -> Place | None:
    """Return the words that announce an answer and are followed by the prompt's own in nearly all prompts with them.

    Where one text follows in all prompts (a list of labels), it is nobody's own answer.
    """
    masked = [_digitless(text) for text in texts]
    rows: dict[str, set[int]] = {}
    for i, (text, answer) in enumerate(zip(texts, answers, strict=True)):
        for start in _found(text, answer):
            words = _digitless(text[max(0, start - 80) : start]).split()
            for count in range(1, WORDS + 1):
                rows.setdefault(" ".join(words[-count:]), set()).add(i)
    places = []
    for before, hits in rows.items():
        own = len(hits) >= max(FEWEST, SHARE * len(texts)) and len({answers[i].casefold() for i in hits}) > 1
        announced = own and re.search(_ANNOUNCED, before, re.IGNORECASE)
        # A mark without words stands before each option of a list: every one of them must be the answer.
        worded = re.search(r"\w", before) is not None
        shown = sum(before in text if worded else text.count(before) for text in masked)
        if announced and len(hits) >= EXACT * shown:
            places.append(Place(before, sorted(hits)))
    return max(places, key=lambda place: (len(place.rows), len(place.before)), default=None)


def _digitless(text: str) -> str:
    return re.sub(r"\d+", "#", text)
