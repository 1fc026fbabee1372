"""Answers that no policy should be paid for, made from perfect ones, and what they get beside these row by row.

A perfect answer is taken apart into what it says and the form around it (a box, tags, ``####``, words that all answers
share), so that a wrong answer can be written in the right form.
"""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from levelhead.errors import RewardError, first_line
from levelhead.records import Prompt
from levelhead.tasks.base import Answer, SingleTurnTask

NONSENSE = "lorem ipsum dolor"
"""What means nothing, and is no row's answer by accident: it holds no number."""
KINDS = {
    "empty": ("an empty answer", "空回答"),
    "empty-box": ("the empty box", "空的答案框"),
    "gibberish": ("gibberish", "胡乱的文字"),
    "gibberish-in-form": ("gibberish in the right form", "格式正确的胡乱文字"),
    "prompt": ("the prompt itself", "题目本身"),
    "others": ("every other row's answer", "其他任何一行的答案"),
    "every-option": ("every option at once", "同时写出所有选项"),
    "first-character": ("the first character and then nonsense", "第一个字符加胡乱文字"),
    "first-half": ("the first half of the right answer", "正确答案的前一半"),
    "inside-another": ("a longer word or number with the right one inside", "把正确答案包在更长的词或数里"),
    "twice": ("the right answer written twice", "把正确答案写两遍"),
    "many-times": ("the right answer written twenty times", "把正确答案写二十遍"),
    "text-before": ("the right answer behind other text", "正确答案前加别的文字"),
    "text-after": ("the right answer with text behind it", "正确答案后加别的文字"),
    "other-case": ("the right answer in other case", "大小写不同的正确答案"),
}
"""What answers are, in English and Chinese."""
FREE = ("gibberish", "gibberish-in-form", "empty-box", "empty", "prompt", "others")
"""Answers with nothing right in them."""
HEDGED = ("every-option", "inside-another", "first-half", "first-character")
"""Answers that are right by accident of how the reward looks."""
TOLERATED = ("twice", "many-times", "text-before", "text-after", "other-case")
"""Answers that may get full marks, and never more."""
SHORT = 8
"""Words of an answer of which a part says less than the whole."""
LISTED = 7
"""Answers in a list of every option."""
FEWEST = 4
"""Perfect answers whose common words are a form."""
_TAGS = re.compile(r"<(?P<tag>[A-Za-z]\w*)>(?P<said>(?:(?!<(?P=tag)>).)*?)</(?P=tag)>", re.DOTALL)
_THOUGHTS = frozenset({"think", "thinking", "reasoning", "thought", "scratchpad"})
_BOXED = re.compile(r"\\boxed\{(?P<said>[^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")
_LAST_LINE = re.compile(
    r"(?:####\s*|(?:answer|答案)(?:\s+is|是)?\s*[:：]\s*)(?P<said>[^\n]+?)\s*$",
    re.IGNORECASE,
)
_LABEL = re.compile(r"\(?[A-Za-z0-9][).:]")
OPTION = re.compile(
    r"(?:^|[\s;,])[(（]?[A-Ha-h1-8][)）.:：]\s+(?P<said>.+?)(?=[\s;,]+[(（]?[A-Ha-h1-8][)）.:：]\s|\n|$)"
)
"""An option behind its letter or number."""


class Form(NamedTuple):
    """A perfect answer taken apart.

    Attributes:
        before: Form in front of what it says, reasoning left out.
        said: What it says.
        after: Form behind it.
    """

    before: str
    said: str
    after: str

    def around(self, text: str) -> str:
        """Return another text in the same form."""
        return f"{self.before}{text}{self.after}"


def forms_of(answers: Sequence[str]) -> list[Form]:
    """Take perfect answers apart: by a box, tags or a last line in each, else by the words that all of them share."""
    marked = [_marked(answer) for answer in answers]
    if all(form is not None for form in marked):
        return [form for form in marked if form is not None]
    words = [re.findall(r"\w+|[^\w\s]|\s+", answer) for answer in answers]
    if len({*answers}) < FEWEST:
        return [form or Form("", answer, "") for form, answer in zip(marked, answers, strict=True)]
    shortest = min(map(len, words))
    front = _common(words, shortest - 1)
    back = _common([row[::-1] for row in words], shortest - 1 - front)
    return [
        Form("".join(row[:front]), "".join(row[front : len(row) - back]), "".join(row[len(row) - back :]))
        for row in words
    ]


def _marked(answer: str) -> Form | None:
    """Take an answer apart by the last mark of a final answer in it."""
    tags = [match for match in _TAGS.finditer(answer) if match["tag"].lower() not in _THOUGHTS]
    for match in [*tags[-1:], *[*_BOXED.finditer(answer)][-1:], *[*_LAST_LINE.finditer(answer)][-1:]]:
        start, end = match.span("said")
        return Form(answer[match.start() : start], match["said"], answer[end : match.end()])
    return None


def _common(rows: Sequence[Sequence[str]], most: int) -> int:
    """Return how many pieces all rows begin with, ending with no piece of white space alone."""
    count = 0
    while count < most and len({row[count] for row in rows}) == 1:
        count += 1
    return count


def options_in(prompt: str) -> list[str]:
    """Return the options that a prompt lists behind letters or numbers; none where it lists fewer than two."""
    listed = [match["said"].strip() for match in OPTION.finditer(prompt)]
    return listed if len(listed) > 1 else []


def every_option(form: Form, prompt: str, others: Sequence[str]) -> str | None:
    """Return an answer that lists what might be right, what is right neither first nor last; ``None`` with too few.

    Args:
        form: Of the perfect answer.
        prompt: Its options stand in the list, where it has some.
        others: What perfect answers to other prompts say.
    """
    own = form.said.casefold().strip()
    wrong = [text for text in dict.fromkeys([*options_in(prompt), *others]) if own not in text.casefold()][: LISTED - 1]
    wrong = [text for text in wrong if text.casefold() not in own]
    if len(wrong) < 2:
        return None
    half = len(wrong) // 2
    return form.around(", ".join([*wrong[:half], form.said, *wrong[half:]]))


def parts_of(form: Form) -> dict[str, str]:
    """Return answers that hold a part of what is right, by what they are: of short answers alone."""
    answer = form.said.strip()
    if len(answer.split()) > SHORT or len(answer) < 2 or _LABEL.match(answer):
        return {}
    parts = {"first-character": form.around(f"{answer[0]}qzx")}
    if len(answer) >= 4 or answer.isdecimal():
        parts["first-half"] = form.around(answer[: max(1, len(answer) // 2)].strip())
    return {kind: text for kind, text in parts.items() if text != form.around(answer)}


def inside_another(form: Form) -> str | None:
    """Return an answer in which what is right is part of a longer word or number; ``None`` where it is no word."""
    core = form.said.strip()
    if not re.fullmatch(r"\w[\w ]{0,19}", core):
        return None
    edge = "7" if core.isdecimal() else "xqz"
    return form.around(f"{edge}{core}{edge}")


def again(answer: str, times: int) -> str:
    """Return an answer written several times."""
    return " ".join([answer] * times)


OTHERS = 4
"""Other rows' answers that must all get full marks before a row is one that pays anything."""
STAND_IN = 0.5
"""Share of rows on which a column's text must score more than gibberish to stand in for a missing oracle."""
FEWEST_ROWS = 8
"""Rows without which nothing is said."""
LONGEST = 200
"""Characters of an answer that is tried twenty times over."""
EQUAL = 1e-9
"""Marks nearer to each other are equal."""
BASIC = ("perfect", "gibberish", "gibberish-in-form", "empty", "empty-box")
"""What all rows are scored on; the rest is tried on a few."""


@dataclass(frozen=True, slots=True)
class Row:
    """A training row with right and wrong answers.

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
    forms = forms_of([answer for _, answer in pairs])
    cores = list(dict.fromkeys(form.said.strip() for form in forms))
    return [
        Row(prompt, perfect, _texts(prompt, perfect, form, cores))
        for (prompt, perfect), form in zip(pairs, forms, strict=True)
    ]


def _texts(prompt: Prompt, perfect: str, form: Form, cores: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the mutations of one answer that differ from it."""
    asked = prompt.texts[-1]
    start = cores.index(form.said.strip()) if form.said.strip() in cores else 0
    others = [text for text in [*cores[start + 1 :], *cores[:start]] if text.casefold() != form.said.casefold().strip()]
    junk = NONSENSE
    variants: dict[str, str | None] = {
        "gibberish": junk,
        "gibberish-in-form": form.around(junk) if form.before or form.after else None,
        "empty": "",
        "empty-box": form.around("") if form.before or form.after else None,
        "prompt": asked,
        "every-option": every_option(form, asked, others),
        **parts_of(form),
        "inside-another": inside_another(form),
        "twice": again(perfect, 2),
        "many-times": again(perfect, 20) if len(perfect) <= LONGEST else None,
        "text-before": f"{junk}\n{perfect}",
        "text-after": f"{perfect}\n{junk}",
        "other-case": perfect.swapcase(),
    }
    texts = {kind: [text] for kind, text in variants.items() if text is not None and text.strip() != perfect.strip()}
    return {**texts, "others": [form.around(text) for text in others[:OTHERS]]}


def stand_in(score: Score, prompts: Sequence[Prompt]) -> list[tuple[Prompt, str]]:
    """Return prompts with the text of the column that scores most like a perfect answer; nothing without one."""
    rows = [columns for prompt in prompts if isinstance(columns := prompt.facts.get("columns"), Mapping)]
    if len(prompts) < FEWEST_ROWS or len(rows) < len(prompts):
        return []
    names = [name for name, value in rows[0].items() if isinstance(value, str | int | float)]
    few = prompts[:FEWEST_ROWS]
    base = score(few, [NONSENSE] * len(few))
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
                self.broken[kind] = first_line(error)
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
