"""What the columns of a data file are: the prompt, the answer, and how answers look."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from keyword import iskeyword
from typing import Any, Literal

from levelhead.errors import InputError
from levelhead.tasks.function.examples import NOT_COLUMNS, TAKEN
from levelhead.tasks.function.loading import STANDARD

Kind = Literal["number", "exact", "contains", "json"]
"""How an answer is judged: its last number, its last line, whether it is in the text, or whether it is valid JSON."""
PROMPTS = ("prompt", "question", "problem", "instruction", "messages", "input", "query", "text", "content")
ANSWERS = ("answer", "solution", "ground_truth", "target", "label", "expected", "reference", "response")
"""Usual names of the columns, the likeliest first."""
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_MARKED = re.compile(r"(?:####|\\boxed\{|<answer>)\s*\$?" + _NUMBER.pattern)
_FEW_WORDS = 6
Rows = Sequence[Mapping[str, Any]]


def prompt_column(rows: Rows, given: str | None, source: str) -> str:
    """Return the column of the prompts: the one that is given, one of a usual name, or the only one of texts.

    Raises:
        InputError: There is no such column, or none can be told.
    """
    columns = list(rows[0])
    if given is not None:
        _require(given, columns, "--prompt", source)
        return given
    texts = [name for name in columns if all(_is_prompt(row.get(name)) for row in rows)]
    usual = [name for name in PROMPTS if name in texts]
    if not usual and len(texts) != 1:
        raise InputError(f"{source}: which column is the prompt? give --prompt; the columns are: {', '.join(columns)}")
    return usual[0] if usual else texts[0]


def answer_column(rows: Rows, given: str | None, prompt: str, source: str) -> str | None:
    """Return the column of the right answers; ``None`` where no column has a usual name.

    Raises:
        InputError: The one that is given is not there.
    """
    columns = list(rows[0])
    if given is not None:
        _require(given, columns, "--answer", source)
        taken = {"columns", *NOT_COLUMNS, *TAKEN, *STANDARD}
        if not given.isidentifier() or iskeyword(given) or given in taken:
            raise InputError(f"--answer {given}: no name that a reward's argument can have; rename the column")
        if given == prompt or not _answers(rows, given):
            raise InputError(
                f"--answer {given}: a right answer is a text, a number, true or false, or a list of these, in every row"
            )
        return given
    return next((name for name in ANSWERS if name in columns and name != prompt and _answers(rows, name)), None)


def likely_kind(answers: Sequence[str]) -> Kind:
    """Return how answers like these are judged best: by number, as they stand, or by what they hold."""
    numbers = sum(bool(_MARKED.search(text) or _NUMBER.fullmatch(text.strip().lstrip("$"))) for text in answers)
    if numbers > 0.9 * len(answers) and all(map(_NUMBER.search, answers)):
        return "number"
    short = sum(len(text.split()) <= _FEW_WORDS for text in answers)
    return "exact" if short > 0.9 * len(answers) else "contains"


def example_of(answers: Sequence[str], kind: Kind | None) -> str:
    """Return an answer to test a reward with: one that has a number, where numbers are judged."""
    fit = (text for text in answers if kind != "number" or _NUMBER.search(text))
    return next(fit, answers[0] if answers else "")


def _is_prompt(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(message, Mapping) and "content" in message for message in value)
    return isinstance(value, str) and bool(value.strip())


def _answers(rows: Rows, name: str) -> bool:
    return all(_is_answer(row.get(name)) for row in rows)


def _is_answer(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(one, str | int | float) and _is_answer(one) for one in value)
    return isinstance(value, str | int | float) and bool(str(value).strip())


def _require(name: str, columns: Sequence[str], flag: str, source: str) -> None:
    if name not in columns:
        raise InputError(f"{flag} {name}: {source} has no such column; the columns are: {', '.join(columns)}")
