"""Answers that others are compared with, where the recipe names a file of them: those of the starting policy, say."""

from __future__ import annotations

import json
from pathlib import Path

from levelhead.errors import InputError

_KEY = "tasks[].judges.pairwise.reference"


def read_references(path: str) -> dict[str, str]:
    """Return the answers of a JSON-lines file, by the text of the prompt.

    Raises:
        InputError: The file cannot be read, or a line is no object with a ``prompt`` and an ``answer``, both texts, or
            has the prompt of an earlier one.
    """
    place = Path(path).expanduser()
    try:
        lines = place.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeError) as error:
        raise InputError(f"{place}: cannot be read ({error}; {_KEY})") from None
    answers: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            raise InputError(f"{place}: line {number} is not a JSON object ({_KEY})") from None
        texts = [row.get(key) if isinstance(row, dict) else None for key in ("prompt", "answer")]
        prompt, answer = texts
        if not isinstance(prompt, str) or not isinstance(answer, str):
            raise InputError(f"{place}: line {number} has no texts under 'prompt' and 'answer' ({_KEY})")
        if prompt in answers:
            raise InputError(f"{place}: line {number} has the prompt of an earlier line ({_KEY})")
        answers[prompt] = answer
    if not answers:
        raise InputError(f"{place}: holds no answers ({_KEY})")
    return answers
