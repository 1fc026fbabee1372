"""Marks of mutated answers, row by row: what the perfect answer gets, and what others get beside it."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from levelhead.errors import RewardError
from levelhead.records import Prompt
from levelhead.tasks import mutations
from levelhead.tasks.base import Answer, SingleTurnTask

OTHERS = 4
"""Other rows' answers that must all get full marks before a row is one that pays anything."""
STAND_IN = 0.5
"""Share of rows on which a column's text must score more than gibberish to stand in for a missing oracle."""
FEWEST = 8
"""Rows without which nothing is said."""
LONGEST = 200
"""Characters of an answer that is tried twenty times over."""
EQUAL = 1e-9
"""Marks nearer to each other are equal."""
BASIC = ("perfect", "gibberish", "gibberish-in-form", "empty", "empty-box")
"""What all rows are scored on; the rest is tried on a few."""


@dataclass(frozen=True, slots=True)
class Row:
    """A training row.

    Attributes:
        prompt: Its prompt.
        perfect: Its perfect answer.
        texts: Other answers by kind, one each, but several of ``others``.
    """

    prompt: Prompt
    perfect: str
    texts: Mapping[str, Sequence[str]]


Score = Callable[[Sequence[Prompt], Sequence[str]], Sequence[float]]
"""Totals of answers, one per prompt; NaN where one is dropped.  :class:`RewardError` where a reward breaks off."""


def scorer(task: SingleTurnTask, encode: Callable[[Prompt, str], tuple[int, ...]], run: Callable[[Any], Any]) -> Score:
    """Return what scores answers by a task's rules.

    Args:
        task: Scores, by rules alone.
        encode: Returns the completion tokens of an answer to a prompt.
        run: Awaits a coroutine.
    """

    def score(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        answers = [Answer(prompt, text, encode(prompt, text)) for prompt, text in zip(prompts, texts, strict=True)]
        return [math.nan if one is None else one.total for one in run(task.score_batch(answers))]

    return score


def rows_of(pairs: Sequence[tuple[Prompt, str]]) -> list[Row]:
    """Return rows with the mutations of their perfect answers."""
    forms = mutations.forms_of([answer for _, answer in pairs])
    said = list(dict.fromkeys(form.said.strip() for form in forms))
    return [
        Row(prompt, perfect, _texts(prompt, perfect, form, said))
        for (prompt, perfect), form in zip(pairs, forms, strict=True)
    ]


def _texts(prompt: Prompt, perfect: str, form: mutations.Form, said: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the mutations of one answer that differ from it."""
    asked = str(prompt.messages[-1].get("content", ""))
    start = said.index(form.said.strip()) if form.said.strip() in said else 0
    others = [text for text in [*said[start + 1 :], *said[:start]] if text.casefold() != form.said.casefold().strip()]
    junk = mutations.NONSENSE
    made: dict[str, str | None] = {
        "gibberish": junk,
        "gibberish-in-form": form.around(junk) if form.before or form.after else None,
        "empty": "",
        "empty-box": form.around("") if form.before or form.after else None,
        "prompt": asked,
        "every-option": mutations.every_option(form, asked, others),
        **mutations.parts_of(form),
        "inside-another": mutations.inside_another(form),
        "twice": mutations.again(perfect, 2),
        "many-times": mutations.again(perfect, 20) if len(perfect) <= LONGEST else None,
        "text-before": f"{junk}\n{perfect}",
        "text-after": f"{perfect}\n{junk}",
        "other-case": perfect.swapcase(),
    }
    texts = {kind: [text] for kind, text in made.items() if text is not None and text.strip() != perfect.strip()}
    return {**texts, "others": [form.around(text) for text in others[:OTHERS]]}


def stand_in(score: Score, prompts: Sequence[Prompt]) -> list[tuple[Prompt, str]]:
    """Return prompts with the text of the column that scores most like a perfect answer; nothing without one."""
    rows = [columns for prompt in prompts if isinstance(columns := prompt.facts.get("columns"), Mapping)]
    if len(prompts) < FEWEST or len(rows) < len(prompts):
        return []
    names = [name for name, value in rows[0].items() if isinstance(value, str | int | float)]
    few = prompts[:FEWEST]
    base = score(few, [mutations.NONSENSE] * len(few))
    best: tuple[float, str, str] | None = None
    for name, wrap in itertools.product(names, ("{}", "\\boxed{{{}}}", "<answer>{}</answer>", "#### {}")):
        texts = [wrap.format(row.get(name, "")) for row in rows[: len(few)]]
        gains = [a - b for a, b in zip(score(few, texts), base, strict=True)]
        if sum(gain > EQUAL for gain in gains) > STAND_IN * len(few) and (best is None or sum(gains) > best[0] + EQUAL):
            best = sum(gains), name, wrap
    if best is None:
        return []
    return [(p, best[2].format(row[best[1]])) for p, row in zip(prompts, rows, strict=True) if row.get(best[1])]


class Marks:
    """What answers to rows get, each kind in a call of its own, so that a prompt is in each call once.

    Args:
        score: Scores answers.
        rows: With the texts to score.
        few: Rows of which every kind is scored.
        patience_s: Seconds that all of it may take; with slow rewards fewer rows are scored.

    Attributes:
        rows: Those that are scored.
        broken: Why the reward broke off, by kind.
    """

    def __init__(self, score: Score, rows: Sequence[Row], *, few: int, patience_s: float) -> None:
        self._score = score
        self.rows, self.broken = list(rows), dict[str, str]()
        self._marks: dict[str, dict[int, tuple[str, float]]] = {}
        start = time.perf_counter()
        self._mark("perfect", range(min(2, len(rows))))
        each = (time.perf_counter() - start) / min(2, len(rows))
        size = int(patience_s / max(each, 1e-6) / (len(BASIC) + 1))
        few = min(few, len(rows), max(2, size // 4))
        for kind in BASIC:
            self._mark(kind, range(max(few, min(len(rows), size))))
        for kind in dict.fromkeys(kind for row in rows[:few] for kind in row.texts):
            if kind not in BASIC:
                self._mark(kind, range(few))

    def _mark(self, kind: str, rows: Sequence[int]) -> None:
        """Score one kind of answer; of several texts of a row the least mark counts."""
        texts = {i: [self.rows[i].perfect] if kind == "perfect" else self.rows[i].texts.get(kind, ()) for i in rows}
        marks: dict[int, tuple[str, float]] = {}
        for turn in range(max(map(len, texts.values()), default=0)):
            some = [i for i in rows if turn < len(texts[i])]
            try:
                scores = self._score([self.rows[i].prompt for i in some], [texts[i][turn] for i in some])
            except RewardError as error:
                self.broken[kind] = str(error).splitlines()[0]
                return
            for i, score in zip(some, scores, strict=True):
                if turn == 0 or not marks[i][1] <= score:
                    marks[i] = texts[i][turn], score
        self._marks[kind] = marks

    def perfect(self, row: int) -> float:
        """Return what the perfect answer of a row gets."""
        return self._marks["perfect"][row][1]

    def _pays(self, row: int) -> bool:
        """Whether a perfect answer gets more than gibberish on a row."""
        return self.perfect(row) > self._marks.get("gibberish", {}).get(row, ("", math.nan))[1] + EQUAL

    @property
    def _top(self) -> float:
        """What perfect answers get on most rows."""
        totals = sorted(mark for _, mark in self._marks["perfect"].values() if not math.isnan(mark))
        return totals[len(totals) // 2] if totals else math.nan

    def unpaid(self) -> list[int]:
        """Return the rows whose perfect answer gets no more than gibberish, and less than other rows' do."""
        shared = self._marks["perfect"].keys() & self._marks.get("gibberish", {}).keys()
        return [i for i in sorted(shared) if not self._pays(i) and self.perfect(i) < self._top - EQUAL]

    def full(self, kind: str) -> tuple[list[int], int]:
        """Return the rows on which a kind of answer gets full marks, and of how many.

        Full is as much as the row's perfect answer, where that gets more than gibberish; of gibberish and of other
        rows' answers, as much as perfect answers get on most rows too: an oracle that is best on average may be
        beaten.  Where most rows pay for every other row's answer the form alone counts, and none is named.
        """
        marks = self._marks.get(kind, {})
        if kind == "gibberish":
            return [i for i in marks if marks[i][1] >= max(self.perfect(i), self._top) - EQUAL], len(marks)
        paying = [i for i in marks if self._pays(i) and self._apart(kind, i)]
        least = self._top if kind == "others" else -math.inf
        hits = [i for i in paying if marks[i][1] >= max(self.perfect(i), least) - EQUAL]
        if kind == "others" and 2 * len(hits) > len(paying):
            hits = []
        return hits, len(paying)

    def _apart(self, kind: str, row: int) -> bool:
        return kind != "others" or len(self.rows[row].texts["others"]) == OTHERS

    def more(self, kind: str) -> tuple[list[int], int]:
        """Return the rows on which a kind of answer gets more than the perfect one, and of how many."""
        marks = self._marks.get(kind, {})
        return [i for i, (_, mark) in marks.items() if mark > self.perfect(i) + EQUAL], len(marks)

    def example(self, kind: str, row: int) -> tuple[str, float]:
        """Return the text of a kind of answer to a row, and what it gets."""
        return self._marks[kind][row]
