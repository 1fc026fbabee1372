"""Mathematics with one exact answer: GSM8K (Cobbe et al. 2021), MATH (Hendrycks et al. 2021) and AIME."""

from __future__ import annotations

import re
from collections.abc import Iterator

from levelhead.tasks.datasets.base import Dataset, Difficulty, Example
from levelhead.tasks.datasets.equality import check_math
from levelhead.tasks.files import Row
from levelhead.tasks.stated import MARKER, boxed, in_a_box, parse_number

_CALCULATOR = re.compile(r"<<[^<>\n]*>>")


def parse_gsm8k(row: Row) -> Iterator[Example]:
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


GSM8K = Dataset(
    name="gsm8k",
    title="GSM8K (Cobbe et al. 2021, arXiv:2110.14168)",
    domain="math",
    origin="https://github.com/openai/grade-school-math, grade_school_math/data/{train,test}.jsonl",
    licence="MIT",
    schemas=(("question", "answer"),),
    parse=parse_gsm8k,
    check=check_math,
    instruction=f"Work it out, then end with a line of {MARKER} and the answer as a number.",
    hub="openai/gsm8k",
    hub_config="main",
    suffixes=(".jsonl",),
)


INSTRUCTION = "Work it out, then give the answer in \\boxed{}."


def parse_math(row: Row) -> Iterator[Example]:
    r"""Read ``problem`` and ``solution``, and where they are there ``answer``, ``level`` and ``type`` (or ``subject``).

    The answer is the field ``answer``, else what the last ``\boxed{}`` of the solution holds.  Level 1 and 2 are easy,
    3 is medium, 4 and 5 are hard; the data have a few rows of ``Level ?``.

    Raises:
        InputError: A field is missing or of another type, or the solution has no box.
    """
    problem, solution = row.text("problem").strip(), row.text("solution").strip()
    answer = row.text("answer").strip() if row.values.get("answer") is not None else boxed(solution)
    if not answer:
        raise row.error(rf"the field 'solution' must hold the answer in \boxed{{}}; it ends in {solution[-40:]!r}")
    level = _level(row)
    difficulty: Difficulty = "medium" if level in (None, 3) else "easy" if level in (1, 2) else "hard"
    subject = next((row.text(key) for key in ("type", "subject") if row.values.get(key) is not None), "")
    key = str(row.values.get("unique_id") or "")
    strata = {"subject": subject} if subject else {}
    yield Example(problem, ((answer,),), in_a_box(solution, answer), key, difficulty=difficulty, strata=strata)


def _level(row: Row) -> int | None:
    """Return the level, 1 to 5; ``None`` where the row has none or does not know it."""
    value = row.values.get("level")
    if value is None or value == "Level ?":
        return None
    text = str(value).removeprefix("Level ")
    if isinstance(value, bool) or not isinstance(value, str | int) or text not in ("1", "2", "3", "4", "5"):
        raise row.error(f"the field 'level' must be 'Level 1' to 'Level 5' or 1 to 5, not {value!r:.60}")
    return int(text)


MATH = Dataset(
    name="math",
    title="MATH (Hendrycks et al. 2021, arXiv:2103.03874), and MATH-500",
    domain="math",
    origin="https://github.com/hendrycks/math, MATH.tar: {train,test}/SUBJECT/N.json, one problem a file",
    licence="MIT",
    schemas=(("problem", "solution"),),
    parse=parse_math,
    check=check_math,
    instruction=INSTRUCTION,
    hub="HuggingFaceH4/MATH-500",
    hub_split="test",
    nested=True,
)


_PROBLEM = ("problem", "Problem", "Question")
_ANSWER = ("answer", "Answer")
_SOLUTION = ("solution", "Solution")
_ID = ("id", "ID", "problem_idx")


def parse_aime(row: Row) -> Iterator[Example]:
    """Read the problem and its answer, a whole number from 0 to 999 as a number or a text; the solution is optional.

    Raises:
        InputError: A field is missing or of another type, or the answer is no such number.
    """
    problem = row.text(_first(row, _PROBLEM)).strip()
    answer = _answer(row, _first(row, _ANSWER))
    solution = next((row.text(key).strip() for key in _SOLUTION if row.values.get(key)), "")
    key = next((str(row.values[key]) for key in _ID if row.values.get(key) is not None), "")
    perfect = in_a_box(solution, answer)
    year = row.values.get("year", row.values.get("Year"))
    strata = {"year": str(year)} if isinstance(year, int | str) and str(year).strip() else {}
    yield Example(problem, ((answer,),), perfect, key, difficulty="hard", strata=strata)


def _first(row: Row, keys: tuple[str, ...]) -> str:
    return next((key for key in keys if key in row.values), keys[0])


def _answer(row: Row, key: str) -> str:
    value = row.require(key)
    text = value.strip() if isinstance(value, str) else str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or not 0 <= int(text[:6]) <= 999:
        raise row.error(f"the field {key!r} must be a whole number from 0 to 999, not {value!r:.60}")
    return str(int(text))


AIME = Dataset(
    name="aime",
    title="AIME (American Invitational Mathematics Examination)",
    domain="math",
    origin="https://huggingface.co/datasets/HuggingFaceH4/aime_2024, AI-MO/aimo-validation-aime, Maxwell-Jia/AIME_2024",
    licence="the problems are the Mathematical Association of America's; the copies state Apache-2.0, MIT or nothing",
    schemas=(("problem", "answer"), ("Problem", "Answer"), ("Question", "Answer")),
    parse=parse_aime,
    check=check_math,
    instruction=INSTRUCTION,
    hub="HuggingFaceH4/aime_2024",
)
