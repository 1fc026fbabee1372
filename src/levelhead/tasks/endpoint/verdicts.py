"""What a model's reply decides, read strictly: only what it says in its own name, on a line of its own."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

_E = r"[*_]{0,3}"  # markdown's emphasis, which may stand around every part of a verdict
_START = rf"(?:[-+*] |#{{1,6}} ?)?{_E}"
_VERDICT = re.compile(rf"{_START}verdict{_E} ?:{_E} ?{_E}(right|wrong)\b(?! or\b).*", re.IGNORECASE)
_LETTER = re.compile(rf"{_START}[<(\[]?([A-Z])[>)\]]?\.?{_E}")
_NAMED = re.compile(
    rf".*\b(?:answer|option|choice|one)(?: is ?:?| ?:){_E} ?{_E}[<(\[]?([A-Z])[>)\]]?\.?{_E}", re.IGNORECASE
)
_FENCE = re.compile(r"(```|~~~)[^`]*")
_THOUGHTS, _ENDED = "<think>", "</think>"


class Material:
    """What a model was shown of others' writing, which it may quote.

    Args:
        texts: All of it.
    """

    def __init__(self, *texts: str) -> None:
        self._texts = texts
        self._lines = {" ".join(line.split()) for text in texts for line in text.splitlines()}

    def __contains__(self, piece: str) -> bool:
        """Whether a piece of text stands in it, letter by letter."""
        return any(piece in text for text in self._texts)

    def has_line(self, line: str) -> bool:
        """Whether a line, with single blanks, stands in it."""
        return line in self._lines


def after_thoughts(text: str, material: Material) -> str:
    """Return a reply without the thoughts at its beginning.

    These are a ``<think>`` that it begins with, up to the first ``</think>``, or all of it where there is none; and
    what stands before a ``</think>``, where the prompt opened the thought.  A tag that stands in the material may be
    quoted from it, and one that stands elsewhere is no thought: these end a line and nothing else.
    """
    text = text.lstrip()
    if text.startswith(_THOUGHTS) and _THOUGHTS not in material:
        text = text.partition(_ENDED)[2]
    elif _ENDED not in material:
        text = text.rpartition(_ENDED)[2]
    return text.replace(_ENDED, "\n").replace(_THOUGHTS, "\n")


def own_lines(text: str, material: Material) -> Iterator[str]:
    """Yield the lines of a reply that speak in its own name, with single blanks.

    Left out are thoughts (:func:`after_thoughts`), block quotes (``>``), fenced code, and fences that stand in the
    material, which open and close nothing here.  A line in quotation marks or backticks keeps these, and so is no
    verdict.
    """
    fence = ""
    for raw in after_thoughts(text, material).splitlines():
        line = " ".join(raw.split())
        if _FENCE.fullmatch(line) and material.has_line(line):
            continue
        if fence:
            fence = "" if line.startswith(fence) else fence
        elif _FENCE.fullmatch(line):
            fence = line[:3]
        elif line and not line.startswith(">"):
            yield line


def read_verdict(text: str, shown: str = "") -> bool | None:
    """Return whether a review says ``VERDICT: RIGHT`` on a line of its own; ``None`` where it says neither or both.

    Args:
        text: The review.
        shown: What was reviewed: lines that stand in it are quotations.
    """
    material = Material(shown)
    lines = [line for line in own_lines(text, material) if not material.has_line(line)]
    verdicts = {match[1].lower() for line in lines if (match := _VERDICT.fullmatch(line))}
    return verdicts == {"right"} if len(verdicts) == 1 else None


def read_letter(text: str, letters: Collection[str], shown: Sequence[str] = ()) -> str | None:
    """Return the letter that a reply chooses: alone on a line, else at the end of one, as in ``The answer is B.``.

    ``None`` where it chooses none or several; a capital elsewhere in a sentence ("A shorter one") is no choice.

    Args:
        text: The reply.
        letters: That it may choose.
        shown: What it chooses among: lines that stand in them are quotations, but for a letter alone.
    """
    material = Material(*shown)
    lines = list(own_lines(text, material))
    for form in (_LETTER, _NAMED):
        lines = [line for line in lines if form is _LETTER or not material.has_line(line)]
        choices = {match[1] for line in lines if (match := form.fullmatch(line))} & set(letters)
        if choices:
            return choices.pop() if len(choices) == 1 else None
    return None
