"""AIME: competition problems whose answer is a whole number from 0 to 999, in the shapes of its copies on the hub."""

from __future__ import annotations

from collections.abc import Iterator

from levelhead.tasks.datasets.base import Dataset, Example
from levelhead.tasks.datasets.checkers.equality import check_math
from levelhead.tasks.datasets.checkers.stated import in_a_box
from levelhead.tasks.datasets.math_competition import INSTRUCTION
from levelhead.tasks.files import Row

_PROBLEM = ("problem", "Problem", "Question")
_ANSWER = ("answer", "Answer")
_SOLUTION = ("solution", "Solution")
_ID = ("id", "ID", "problem_idx")


def parse(row: Row) -> Iterator[Example]:
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


DATASET = Dataset(
    name="aime",
    title="AIME (American Invitational Mathematics Examination)",
    domain="math",
    origin="https://huggingface.co/datasets/HuggingFaceH4/aime_2024, AI-MO/aimo-validation-aime, Maxwell-Jia/AIME_2024",
    licence="the problems are the Mathematical Association of America's; the copies state Apache-2.0, MIT or nothing",
    schemas=(("problem", "answer"), ("Problem", "Answer"), ("Question", "Answer")),
    parse=parse,
    check=check_math,
    instruction=INSTRUCTION,
    hub="HuggingFaceH4/aime_2024",
)
