"""Multiple choice: which option a text names, by its letter or by what it says."""

from __future__ import annotations

import re

from levelhead.recipe.workflow import SandboxLimits
from levelhead.tasks.datasets.base import Example, Verdict
from levelhead.tasks.datasets.checkers.spans import hotpot_normalize
from levelhead.tasks.datasets.checkers.stated import stated

_LETTER = re.compile(r"^\W*(?:option\s+|answer\s+)?([A-Za-z])(?:\W|$)", re.IGNORECASE)
_MARKED = re.compile(r"^\W*(?:(?:option|answer)\s+)?[A-Za-z]\s*[).:,-]", re.IGNORECASE)


def check_letter(example: Example, text: str, limits: SandboxLimits | None = None) -> Verdict:  # noqa: ARG001
    """Judge a choice; an answer that names no option states none."""
    option = choice(example, text)
    if option is None:
        return Verdict(right=False, score=0.0, stated=None, note="names no option")
    option_text = example.options[option]
    right = any(option_text == spans[0] for spans in example.answers)
    return Verdict(right, float(right), chr(ord("A") + option))


def choice(example: Example, text: str) -> int | None:
    """Return the index of the option that a text names; ``None`` where it names none."""
    answer = stated(text)
    if answer is None:
        return None
    whole = [i for i, option in enumerate(example.options) if hotpot_normalize(option) == hotpot_normalize(answer)]
    if whole:
        return whole[0]
    match = _LETTER.match(answer)
    if match is None or (len(answer) > 1 and answer[match.end(1) : match.end(1) + 1].isalpha()):
        return None
    index = ord(match[1].upper()) - ord("A")
    # "A dog" is an article and a word; "A. dog", "(A)" and "A" name an option.
    if len(answer.split()) > 1 and not _MARKED.match(answer):
        return None
    return index if index < len(example.options) else None
