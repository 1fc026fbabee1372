"""Answers that no policy should be paid for, made from perfect ones.

A perfect answer is taken apart into what it says and the form around it (a box, tags, ``####``, words that all answers
share), so that a wrong answer can be written in the right form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

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
    said = form.said.strip()
    if len(said.split()) > SHORT or len(said) < 2 or _LABEL.match(said):
        return {}
    parts = {"first-character": form.around(f"{said[0]}qzx")}
    if len(said) >= 4 or said.isdecimal():
        parts["first-half"] = form.around(said[: max(1, len(said) // 2)].strip())
    return {kind: text for kind, text in parts.items() if text != form.around(said)}


def inside_another(form: Form) -> str | None:
    """Return an answer in which what is right is part of a longer word or number; ``None`` where it is no word."""
    said = form.said.strip()
    if not re.fullmatch(r"\w[\w ]{0,19}", said):
        return None
    edge = "7" if said.isdecimal() else "xqz"
    return form.around(f"{edge}{said}{edge}")


def again(answer: str, times: int) -> str:
    """Return an answer written several times."""
    return " ".join([answer] * times)
