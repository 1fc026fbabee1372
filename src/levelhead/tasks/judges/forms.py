"""Forms of a verdict: what a judge is asked to end with, and how that is read so that nobody else's words count.

Two things hold that nothing which others wrote is read as the judge's own words.  The verdict carries a mark that the
material does not hold in any spelling, so that no quotation of the material carries it.  And a verdict without the mark
counts only where its words do not stand in the material.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from levelhead.tasks.endpoint import Form, Reply
from levelhead.tasks.endpoint.verdicts import Material, after_thoughts, own_lines
from levelhead.tasks.judges.material import NOTHING, VERDICT_MARK, JudgedMaterial, harmless
from levelhead.tasks.strict_json import read_object

_FENCE = re.compile(r"\s*(?:```|~~~)")


def is_fence(line: str) -> bool:
    """Whether a line opens or closes a fenced block."""
    return _FENCE.match(line) is not None


_E = r"[*_]{0,3}"  # markdown's emphasis, which may stand around every part of a verdict
_START = rf"(?:[-+*] |#{{1,6}} ?)?{_E}"
_MARK = r"\[ ?(?P<mark>[0-9a-f]{4,32}) ?\]"
_GRADE = re.compile(
    rf"{_START}(?:my |the )?(?:final |overall )?grade{_E} ?(?:{_MARK})?{_E} ?[:=\uff1a]{_E} ?{_E}"
    rf"(?P<value>[-+]?[0-9][-+0-9.,%]*{_E}(?: ?/ ?{_E}[-+0-9.,%]+| out of [-+0-9.,%]+)?){_E}\.?{_E}",
    re.IGNORECASE,
)
_OF_TEN = re.compile(rf"(10(?:\.0{{1,3}})?|[0-9](?:\.[0-9]{{1,3}})?)\.?{_E}(?: ?/ ?{_E}10| out of 10)?\.?")
_FRACTION = re.compile(
    rf"{_E}(?:{_MARK}{_E} ?:? ?{_E})?(?P<value>[0-9]{{1,3}}(?:\.[0-9]{{1,3}})? ?/ ?(?:100|10|5)){_E}\.?"
)
_YES_NO = re.compile(rf"{_E}(?:{_MARK}{_E} ?:? ?{_E})?(?P<value>yes|no)[.!]?{_E}[.!]?", re.IGNORECASE)
_BETTER = re.compile(
    rf"{_START}better{_E} ?(?:{_MARK})?{_E} ?[:=]{_E} ?{_E}(?P<value>a|b|tie){_E}\.?{_E}", re.IGNORECASE
)
_OUTCOMES = {"a": 1.0, "tie": 0.5, "b": 0.0}
_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*", re.DOTALL)
_OBJECTS = 64
"""Most places of a reply, from its end, that are tried as the beginning of a JSON object."""


_LIST = "verdicts"


def _schema(**properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of an object that has all of some properties, and no others."""
    required = [*properties]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _verdict_schema(**value: Mapping[str, Any]) -> Mapping[str, Any]:
    return _schema(reason={"type": "string"}, mark={"type": "string"}, **value)


def _listed(text: str, material: Material) -> str:
    """A reply that is one object with a list of verdicts as a line for each, without reasons; any other as it is."""
    for whole in (text, after_thoughts(text, material)):
        fenced = _FENCED.fullmatch(whole)
        try:
            verdicts = read_object(fenced[1] if fenced else whole)[_LIST]
        except (ValueError, KeyError):
            continue
        objects = [one for one in verdicts if isinstance(one, dict)] if isinstance(verdicts, list) else []
        return "\n".join(json.dumps({key: one[key] for key in one if key != "reason"}) for one in objects)
    return text


class Verdict(NamedTuple):
    """Something in a reply that reads as a verdict.

    Attributes:
        mark: That it carries; empty where it carries none.
        value: The grade in [0, 1]; ``None`` where it is out of range.
        words: Those that would be quoted from the material if they were somebody else's.
    """

    mark: str
    value: float | None
    words: str


@dataclass(frozen=True, slots=True)
class VerdictForm:
    """One form in which a judge gives its verdict.

    Attributes:
        told: What the judge is told to do, after "Think in at most two sentences, then ..."; ``{mark}`` is the mark.
        find: Yields the verdicts of a reply's lines, in order, and at most one for each line.
        schema: That the provider can hold replies to.
        parser: The user's own way to read a reply, instead of ours: from its text and the mark to a grade.
    """

    told: str
    find: Callable[[Sequence[str]], Iterator[tuple[int, Verdict]]]
    schema: Mapping[str, Any] | None = None
    parser: Callable[[str, str], float | None] | None = None

    def asked(self, *, structured: bool, odds: bool, several: bool = False) -> Form:
        """Return what replies are asked to be; ``several`` verdicts are a list, which is what a schema can hold."""
        schema = self.schema if structured else None
        if schema is not None and several:
            schema = _schema(**{_LIST: {"type": "array", "items": schema}})
        return Form(schema, odds)

    def tell(self, mark: str) -> str:
        """Return what the judge is told to end with."""
        return self.told.replace("{mark}", mark[:VERDICT_MARK])

    def tell_each(self, count: int, *, structured: bool) -> str:
        """Return what the judge is told to end with where it is asked about several criteria at once."""
        listed = f' These lines are the items of "{_LIST}", a list in one JSON object.' if structured else ""
        return (
            f"for each of the {count} criteria in turn, {self.tell('MARK')}\n"
            f"In each, MARK is the mark that stands in front of its criterion.{listed}"
        )

    def shown(self, text: str) -> str:
        """Return material as a judge is shown it.

        Control tokens are spelt harmlessly, and every line that opens a fence or could be read as a verdict of any form
        is made a block quote.
        """
        lines = harmless(text).splitlines(keepends=True)
        quoted = {line for line in set(lines) if self._reads(line)}
        return "".join(f"> {line}" if line in quoted else line for line in lines)

    def _reads(self, line: str) -> bool:
        if line.lstrip().startswith(">"):
            return False
        if is_fence(line) or (self.parser is not None and self.parser(line, "") is not None):
            return True
        plain = " ".join(line.split())
        return any(True for form in (*FORMS.values(), *PAIR_FORMS.values()) for _ in form.find([plain]))

    def grade(self, reply: Reply, mark: str = "", material: JudgedMaterial = NOTHING) -> float | None:
        """Return a reply's grade in [0, 1]; ``None`` where it has none, or was cut off before its end.

        The last verdict with the mark counts.  Where none carries it, the reply's last line must be a verdict whose
        words do not stand in the material, and other verdicts of its own must agree.  Thoughts at the reply's beginning
        do not count.  Where a yes or no comes with log-probabilities and ends the reply, the grade is the probability
        of yes against no.

        Args:
            reply: The judge's.
            mark: That the judge was shown.
            material: What it was shown of others' writing.
        """
        if reply.cut:
            return None
        if self.parser is not None:
            return self.parser(reply.text, mark[:VERDICT_MARK])
        verdict = self._marked(reply.text, mark[:VERDICT_MARK], material) if mark else None
        if verdict is None:
            verdict = self._unmarked(reply.text, material)
        if verdict is None or verdict.value is None:
            return None
        ends = [verdict for _, verdict in self.find(_lines(reply.text)[-1:])]
        # Log-probabilities are those of the last yes or no, which is another one where something follows the verdict.
        return reply.yes if reply.yes is not None and verdict in ends else verdict.value

    def grades(self, reply: Reply, marks: Sequence[str], material: JudgedMaterial) -> list[float | None]:
        """Return the grade in [0, 1] by each criterion of one reply; ``None`` where it has none.

        Of one criterion this is :meth:`grade`.  Of several each has a mark of its own, and only the last verdict with
        that mark counts: without it a verdict could be any criterion's.

        Args:
            reply: The judge's.
            marks: Of the criteria, in order.
            material: What the judge was shown of others' writing.
        """
        if len(marks) == 1:
            return [self.grade(reply, marks[0], material)]
        if reply.cut:
            return [None] * len(marks)
        text = _listed(reply.text, material) if self.schema is not None else reply.text
        verdicts = [self._marked(text, mark[:VERDICT_MARK], material) for mark in marks]
        return [verdict.value if verdict is not None else None for verdict in verdicts]

    def _marked(self, text: str, mark: str, material: JudgedMaterial) -> Verdict | None:
        """The last verdict that carries the mark, wherever it stands."""
        lines = _lines(after_thoughts(text, material))
        matches = [verdict for _, verdict in self.find(lines) if verdict.mark.casefold() == mark]
        return matches[-1] if matches else None

    def _unmarked(self, text: str, material: JudgedMaterial) -> Verdict | None:
        """The verdict on the last line that is the judge's own, where others of its own lines give the same."""
        whole = _FENCED.fullmatch(after_thoughts(text, material)) if self.schema is not None else None
        lines = _lines(whole[1]) if whole else [one for one in own_lines(text, material) if not material.has_line(one)]
        matches = [(i, one) for i, one in self.find(lines) if not one.mark and not material.holds(one.words)]
        if not matches or matches[-1][0] != len(lines) - 1 or len({one.value for _, one in matches}) != 1:
            return None
        return matches[-1][1]


def _lines(text: str) -> list[str]:
    """Lines that are not empty, with single blanks and without the backticks around them."""
    lines = (" ".join(line.split()).strip("` ") if not is_fence(line) else line.strip() for line in text.splitlines())
    return [line for line in lines if line]


def _line_form(
    pattern: re.Pattern[str], value: Callable[[str], float | None], word: str = ""
) -> Callable[[Sequence[str]], Iterator[tuple[int, Verdict]]]:
    """How verdicts that are lines of their own are found."""

    def find(lines: Sequence[str]) -> Iterator[tuple[int, Verdict]]:
        for i, line in enumerate(lines):
            if match := pattern.fullmatch(line):
                number = re.split(r" ?/| out of", match["value"])[0] if word else match["value"]
                yield i, Verdict(match["mark"] or "", value(match["value"]), f"{word} {number}")

    return find


def _json_form(
    name: Callable[[Mapping[str, Any]], tuple[float | None, str] | None],
) -> Callable[[Sequence[str]], Iterator[tuple[int, Verdict]]]:
    """How verdicts that are JSON objects are found.

    Without a mark an object is the whole reply, fenced or not, or a line of its own; with one it begins a line.
    """

    def find(lines: Sequence[str]) -> Iterator[tuple[int, Verdict]]:
        whole = "\n".join(lines)
        fenced = _FENCED.fullmatch(whole)
        if (verdict := _object(fenced[1] if fenced else whole, name)) is not None:
            yield len(lines) - 1, verdict
            return
        begins = [i for i, line in enumerate(lines) if line.startswith("{")]
        for i in begins[-_OBJECTS:]:
            verdict = _object("\n".join(lines[i:]), name, whole=False)
            if verdict is not None and (verdict.mark or _object(lines[i], name) is not None):
                yield i, verdict

    return find


def _object(
    text: str, name: Callable[[Mapping[str, Any]], tuple[float | None, str] | None], *, whole: bool = True
) -> Verdict | None:
    if not text.lstrip().startswith("{"):  # each line of a long answer comes here, and next to none is an object
        return None
    try:
        data = read_object(text, whole=whole)
    except ValueError:
        return None
    read = name(data)
    mark = data.get("mark", "")
    return Verdict(mark.strip("[] ") if isinstance(mark, str) else "?", *read) if read is not None else None


def _score(data: Mapping[str, Any]) -> tuple[float | None, str] | None:
    values = [(key, data[key], most) for key, most in (("score", 1.0), ("grade", 10.0)) if key in data]
    if not values:
        return None
    key, value, most = values[0]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    right = len(values) == 1 and number and 0 <= value <= most
    return (value / most if right else None), f"{key} {str(value)[:40]}"


def _better(data: Mapping[str, Any]) -> tuple[float | None, str] | None:
    if "better" not in data:
        return None
    better = data["better"]
    return (_OUTCOMES.get(better.casefold()) if isinstance(better, str) else None), f"better {str(better)[:40]}"


def _of_ten(number: str) -> float | None:
    match = _OF_TEN.fullmatch(number)
    return float(match[1]) / 10 if match else None


def _share(fraction: str) -> float | None:
    part, whole = (float(number) for number in fraction.split("/"))
    return part / whole if part <= whole else None


FORMS: Mapping[str, VerdictForm] = {
    "grade": VerdictForm(
        "end with a line of the form\nGrade[{mark}]: N\nwhere N is a whole number from 0 to 10.",
        _line_form(_GRADE, _of_ten, "grade"),
    ),
    "json": VerdictForm(
        'end with one line of JSON of the form\n{"mark": "{mark}", "score": S}\n'
        "where S is a number from 0 (worst) to 1 (best).",
        _json_form(_score),
        _verdict_schema(score={"type": "number"}),
    ),
    "fraction": VerdictForm(
        "end with a line of the form\n[{mark}] N/10\nwhere N is a number from 0 to 10.", _line_form(_FRACTION, _share)
    ),
    "yes_no": VerdictForm(
        "end with a line that holds a mark and one word: [{mark}] Yes where the answer deserves a grade of more than "
        "half, else [{mark}] No.",
        _line_form(_YES_NO, lambda word: float(word.casefold() == "yes")),
    ),
}
"""By the recipe's ``verdict``."""
PAIR_FORMS: Mapping[str, VerdictForm] = {
    "grade": VerdictForm(
        "end with a line of the form\nBetter[{mark}]: X\nwhere X is A, B, or tie if neither is better.",
        _line_form(_BETTER, lambda name: _OUTCOMES[name.casefold()], "better"),
    ),
    "json": VerdictForm(
        'end with one line of JSON of the form\n{"mark": "{mark}", "better": X}\n'
        'where X is "A", "B", or "tie" if neither is better.',
        _json_form(_better),
        _verdict_schema(better={"type": "string", "enum": ["A", "B", "tie"]}),
    ),
}
"""The same of judges that compare two answers: how the first one fares."""
