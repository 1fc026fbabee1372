"""GSM8K: grade-school word problems with one number as the answer (Cobbe et al. 2021)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from levelhead.tasks.datasets.base import Dataset, Difficulty, Example
from levelhead.tasks.datasets.checkers.equality import check_math
from levelhead.tasks.files import Row
from levelhead.tasks.numbers import MARKER, parse_number

_CALCULATOR = re.compile(r"<<[^<>\n]*>>")


def parse(row: Row) -> Iterator[Example]:
    """Read ``question``, and ``answer``: a worked solution that ends in ``#### N``.

    The number of calculations in it (``<<3+4=7>>``) gives the difficulty: up to two are easy, up to four medium.

    Raises:
        InputError: A field is missing, no text or empty, or the answer ends in no number.
    """
    question, answer = row.text("question"), row.text("answer")
    if MARKER not in answer:
        raise row.error(f"the field 'answer' must end in '{MARKER} N', N being the number; it ends in {answer[-40:]!r}")
    reasoning, final = _CALCULATOR.sub("", answer).rsplit(MARKER, 1)
    if parse_number(final) is None:
        raise row.error(f"the field 'answer' must end in '{MARKER} N', and {final.strip()[:40]!r} is not one number")
    # A stray marker in the reasoning would make the perfect answer look like a hedge.
    solution = f"{reasoning.replace(MARKER, '').rstrip()}\n{MARKER} {final.strip()}".lstrip("\n")
    steps = answer.count("<<")
    difficulty: Difficulty = "easy" if steps <= 2 else "medium" if steps <= 4 else "hard"
    yield Example(question.strip(), ((final.strip(),),), solution, difficulty=difficulty)


DATASET = Dataset(
    name="gsm8k",
    title="GSM8K (Cobbe et al. 2021, arXiv:2110.14168)",
    domain="math",
    origin="https://github.com/openai/grade-school-math, grade_school_math/data/{train,test}.jsonl",
    licence="MIT",
    schemas=(("question", "answer"),),
    parse=parse,
    check=check_math,
    instruction=f"Work it out, then end with a line of {MARKER} and the answer as a number.",
    hub="openai/gsm8k",
    hub_config="main",
    suffixes=(".jsonl",),
)
