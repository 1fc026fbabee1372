"""Forms of a verdict: what a judge is told to end with, and how strictly that is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from levelhead.tasks.endpoint import Form, Reply
from levelhead.tasks.endpoint.verdicts import own_lines, read_grade, without_grades
from levelhead.tasks.strict_json import read_object

_FRACTION = re.compile(r"[*_]{0,3}([0-9]{1,3}(?:\.[0-9]{1,3})?) ?/ ?(10|100|5)[*_]{0,3}\.?")
_YES_NO = re.compile(r"[*_]{0,3}(yes|no)[.!]?[*_]{0,3}[.!]?", re.IGNORECASE)
_BETTER = re.compile(r"[*_]{0,3}better[*_]{0,3} ?[:=][*_]{0,3} ?[*_]{0,3}(a|b|tie)[*_]{0,3}\.?[*_]{0,3}", re.IGNORECASE)
_OUTCOMES = {"a": 1.0, "tie": 0.5, "b": 0.0}
_WHOLE_FENCE = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*", re.DOTALL)
_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "score": {"type": "number"}},
    "required": ["reason", "score"],
    "additionalProperties": False,
}
_SCHEMA_OF_PAIRS: Mapping[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "better": {"type": "string", "enum": ["A", "B", "tie"]}},
    "required": ["reason", "better"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class VerdictForm:
    """One form.

    Attributes:
        told: What the judge is told to do, after "Think in at most two sentences, then ...".
        read: From a reply's text to a grade in [0, 1], or ``None``.
        schema: That the provider can hold replies to.
    """

    told: str
    read: Callable[[str], float | None]
    schema: Mapping[str, Any] | None = None

    def grade(self, reply: Reply) -> float | None:
        """Return a reply's grade in [0, 1]; ``None`` where it has none, or was cut off before its end.

        Where a yes or no comes with log-probabilities the grade is the probability of yes against no.
        """
        if reply.cut:
            return None
        grade = self.read(reply.text)
        return reply.yes if grade is not None and reply.yes is not None else grade

    def quote(self, text: str) -> str:
        """Return text with every line that could be read as a verdict made a block quote."""
        lines = without_grades(text).splitlines(keepends=True)
        return "".join(f"> {line}" if self._reads(line) else line for line in lines)

    def _reads(self, line: str) -> bool:
        return not line.lstrip().startswith(">") and self.read(line) is not None

    def asked(self, *, structured: bool, odds: bool) -> Form:
        """Return what replies are asked to be."""
        return Form(self.schema if structured else None, odds)


def read_fraction(text: str) -> float | None:
    """Return the grade of a reply whose last own line is ``7/10``, ``70/100`` or ``3.5/5`` and nothing else.

    Any other own line of this form must give the same grade; a number above the whole is none.
    """
    return _last(text, _FRACTION, lambda match: float(match[1]) / float(match[2]))


def read_yes_no(text: str) -> float | None:
    """Return 1 or 0 of a reply whose last own line is ``Yes`` or ``No`` and nothing else, and no other says another."""
    return _last(text, _YES_NO, lambda match: float(match[1].casefold() == "yes"))


def _last(text: str, pattern: re.Pattern[str], value: Callable[[re.Match[str]], float]) -> float | None:
    matches = [pattern.fullmatch(line) for line in own_lines(text)]
    if not matches or matches[-1] is None:
        return None
    values = {value(match) for match in matches if match is not None}
    return next(iter(values)) if len(values) == 1 and max(values) <= 1 else None


def read_json(text: str) -> float | None:
    """Return the grade of a reply that is a JSON object, or whose last own line is one.

    It holds ``score``, from 0 to 1, or ``grade``, from 0 to 10, and not both; a fence around the whole reply is left
    out.  Objects on several own lines must agree.
    """
    return _in_json(text, _score)


def read_better(text: str) -> float | None:
    """Return how the first answer of a pair fares: 1, 0.5 for a tie, or 0.

    The reply's last own line is ``Better: A``, ``Better: B`` or ``Better: tie`` and nothing else, and no other own line
    of this form says another.
    """
    return _last(text, _BETTER, lambda match: _OUTCOMES[match[1].casefold()])


def read_better_json(text: str) -> float | None:
    """Return how the first answer of a pair fares by a reply that is ``{"better": "A"}``, as :func:`read_json`."""
    return _in_json(text, _outcome)


def _in_json(text: str, value: Callable[[str], float | None]) -> float | None:
    said = text.rpartition("</think>")[2]
    fenced = _WHOLE_FENCE.fullmatch(said)
    whole = value(fenced[1] if fenced else said)
    if whole is not None:
        return whole
    lines = [value(line) for line in own_lines(text)]
    values = {one for one in lines if one is not None}
    return lines[-1] if lines and len(values) == 1 else None


def _outcome(text: str) -> float | None:
    try:
        better = read_object(text).get("better")
    except ValueError:
        return None
    return _OUTCOMES.get(better.casefold()) if isinstance(better, str) else None


def _score(text: str) -> float | None:
    try:
        data = read_object(text)
    except ValueError:
        return None
    values = [(data[key], most) for key, most in (("score", 1.0), ("grade", 10.0)) if key in data]
    if len(values) != 1:
        return None
    value, most = values[0]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        return None
    return value / most


FORMS: Mapping[str, VerdictForm] = {
    "grade": VerdictForm(
        "end with a line of the form\nGrade: N\nwhere N is a whole number from 0 to 10.",
        read_grade,
    ),
    "json": VerdictForm(
        'end with one line of JSON of the form\n{"score": S}\nwhere S is a number from 0 (worst) to 1 (best).',
        read_json,
        _SCHEMA,
    ),
    "fraction": VerdictForm("end with a line of the form\nN/10\nwhere N is a number from 0 to 10.", read_fraction),
    "yes_no": VerdictForm(
        "end with a line that holds one word: Yes where the answer deserves a grade of more than half, else No.",
        read_yes_no,
    ),
}
"""By the recipe's ``verdict``."""
PAIR_FORMS: Mapping[str, VerdictForm] = {
    "grade": VerdictForm(
        "end with a line of the form\nBetter: X\nwhere X is A, B, or tie if neither is better.",
        read_better,
    ),
    "json": VerdictForm(
        'end with one line of JSON of the form\n{"better": X}\nwhere X is "A", "B", or "tie" if neither is better.',
        read_better_json,
        _SCHEMA_OF_PAIRS,
    ),
}
"""The same of judges that compare two answers: how the first one fares."""
