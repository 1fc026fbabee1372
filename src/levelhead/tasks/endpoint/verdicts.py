"""What a model's reply decides, read strictly: only what it says in its own name, on a line of its own."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

_E = r"[*_]{0,3}"  # markdown's emphasis, which may stand around every part of a verdict
_START = rf"(?:[-+*] |#{{1,6}} ?)?{_E}"
_GRADE = re.compile(
    rf"{_START}(?:my |the )?(?:final |overall )?grade{_E} ?[:=\uff1a]{_E} ?{_E}"
    rf"([-+]?[0-9][-+0-9.,%]*{_E}(?: ?/ ?{_E}[-+0-9.,%]+| out of [-+0-9.,%]+)?){_E}\.?{_E}",
    re.IGNORECASE,
)
_OF_TEN = re.compile(rf"(10(?:\.0{{1,3}})?|[0-9](?:\.[0-9]{{1,3}})?)\.?{_E}(?: ?/ ?{_E}10| out of 10)?\.?")
_VERDICT = re.compile(rf"{_START}verdict{_E} ?:{_E} ?{_E}(right|wrong)\b(?! or\b).*", re.IGNORECASE)
_LETTER = re.compile(rf"{_START}[<(\[]?([A-Z])[>)\]]?\.?{_E}")
_NAMED = re.compile(
    rf".*\b(?:answer|option|choice|one)(?: is ?:?| ?:){_E} ?{_E}[<(\[]?([A-Z])[>)\]]?\.?{_E}", re.IGNORECASE
)
_FENCE = re.compile(r"(```|~~~)[^`]*")


def own_lines(text: str) -> Iterator[str]:
    """Yield the lines of a reply that speak in its own name, with single blanks.

    Left out are thoughts (up to the last ``</think>``, and from a ``<think>`` that is not closed), block quotes (``>``)
    and fenced code.  A line in quotation marks or backticks keeps these, and so is none of the verdicts below.
    """
    fence = ""
    for raw in text.rpartition("</think>")[2].partition("<think>")[0].splitlines():
        line = " ".join(raw.split())
        if fence:
            fence = "" if line.startswith(fence) else fence
        elif _FENCE.fullmatch(line):
            fence = line[:3]
        elif line and not line.startswith(">"):
            yield line


def read_grade(text: str, *, cut: bool = False) -> float | None:
    """Return the grade in [0, 1] that a reply gives, or ``None`` where it gives none or more than one.

    The last line that is the reply's own (:func:`own_lines`) must be ``Grade: N`` and nothing else, with N from 0 to
    10, decimals allowed, perhaps as ``N/10`` or ``N out of 10``, in bold or not.  Any other own line of this form must
    give the same grade.  So what stands in the middle of a sentence, in a quotation or in JSON is no grade, and neither
    is a number below 0 or above 10.

    Args:
        text: The reply.
        cut: Whether it ran out of its token budget.  Then it has no grade: a 1 may have been going to be a 10.
    """
    matches = [_GRADE.fullmatch(line) for line in own_lines(text)]
    if cut or not matches or matches[-1] is None:
        return None
    grades = {_of_ten(match[1]) for match in matches if match is not None}
    return grades.pop() if len(grades) == 1 else None


def without_grades(text: str) -> str:
    """Return text with every line that could be read as a grade made a block quote.

    A judge that repeats what it was shown, and leaves it at that, then gives no grade.
    """
    lines = text.splitlines(keepends=True)
    return "".join(f"> {line}" if _GRADE.fullmatch(" ".join(line.split())) else line for line in lines)


def read_verdict(text: str) -> bool | None:
    """Return whether a review says ``VERDICT: RIGHT`` on a line of its own; ``None`` where it says neither or both."""
    verdicts = {match[1].lower() for line in own_lines(text) if (match := _VERDICT.fullmatch(line))}
    return verdicts == {"right"} if len(verdicts) == 1 else None


def read_letter(text: str, letters: Collection[str]) -> str | None:
    """Return the letter that a reply chooses: alone on a line, else at the end of one, as in ``The answer is B.``.

    ``None`` where it chooses none or several; a capital elsewhere in a sentence ("A shorter one") is no choice.
    """
    lines = list(own_lines(text))
    for form in (_LETTER, _NAMED):
        choices = {match[1] for line in lines if (match := form.fullmatch(line))} & set(letters)
        if choices:
            return choices.pop() if len(choices) == 1 else None
    return None


def _of_ten(number: str) -> float | None:
    match = _OF_TEN.fullmatch(number)
    return float(match[1]) / 10 if match else None
