r"""Which part of a text is its answer: after ``####``, in ``\boxed{}``, after "the answer is", or its last line."""

from __future__ import annotations

import re

from levelhead.tasks.numbers import MARKER, final_answer

_BOX = re.compile(r"\\f?boxed\s*")
_OUTER = re.compile(r"^[\s*_`\"'\u201c\u2018]+|[\s*_`\"'\u201d\u2019.]+$")


def boxed(text: str) -> str | None:
    r"""Return what the last ``\boxed{...}`` of a text holds, its braces matched; ``None`` where there is none."""
    for match in reversed(list(_BOX.finditer(text))):
        rest = text[match.end() :]
        if not rest.startswith("{"):
            if rest[:1].isalnum():  # \boxed 5
                return rest.split(None, 1)[0].rstrip("$.")
            continue
        depth = 0
        for position, character in enumerate(rest):
            depth += (character == "{") - (character == "}")
            if depth == 0:
                return rest[1:position].strip()
    return None


def in_a_box(solution: str, answer: str) -> str:
    r"""Return a solution that ends in its answer in the one ``\boxed{}`` that it holds; other boxes are opened."""
    if ends_in_box(solution):
        return solution
    return f"{_BOX.sub('', solution).rstrip()}\n\\boxed{{{answer}}}".lstrip()


def ends_in_box(text: str) -> bool:
    r"""Whether a completion gives its answer as asked: in one ``\boxed{}``, with no words after it."""
    matches = list(_BOX.finditer(text))
    answer = boxed(text)
    if len(matches) != 1 or answer is None:
        return False
    tail = text[matches[0].end() :].replace(answer, "", 1)
    return not re.search(r"\w", tail)


def stated(text: str, *, lines: bool = True) -> str | None:
    """Return what a completion states as its answer.

    Args:
        text: The completion.
        lines: Whether the last line counts as the answer where nothing marks one.

    Returns:
        The text after the last ``####``, in the last box, or after the last "answer is"; else the last line, or
        ``None`` where there is none.
    """
    if MARKER in text:
        return (final_answer(text) or "").strip() or None
    box = boxed(text)
    if box is not None:
        return box or None
    said = final_answer(text)
    if said is None and lines:
        written = [line for line in text.strip().splitlines() if line.strip()]
        said = written[-1] if written else None
    return _OUTER.sub("", said) or None if said is not None else None
