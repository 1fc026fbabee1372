r"""MATH: competition problems whose answer stands in ``\boxed{}`` (Hendrycks et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterator

from levelhead.tasks.datasets.base import Dataset, Difficulty, Example
from levelhead.tasks.datasets.checkers.equality import check_math
from levelhead.tasks.datasets.checkers.stated import boxed, in_a_box
from levelhead.tasks.files import Row

INSTRUCTION = "Work it out, then give the answer in \\boxed{}."


def parse(row: Row) -> Iterator[Example]:
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


DATASET = Dataset(
    name="math",
    title="MATH (Hendrycks et al. 2021, arXiv:2103.03874), and MATH-500",
    domain="math",
    origin="https://github.com/hendrycks/math, MATH.tar: {train,test}/SUBJECT/N.json, one problem a file",
    licence="MIT",
    schemas=(("problem", "solution"),),
    parse=parse,
    check=check_math,
    instruction=INSTRUCTION,
    hub="HuggingFaceH4/MATH-500",
    hub_split="test",
    nested=True,
)
