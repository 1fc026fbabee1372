"""Reward files that ``levelhead init`` writes, each with a test on a row of the user's own data."""

from __future__ import annotations

from levelhead.scaffold.columns import Kind

NAMES: dict[Kind, str] = {
    "number": "right_number",
    "exact": "right_answer",
    "contains": "mentions",
    "json": "valid_json",
}
"""What the reward function of each kind is called."""
SYSTEM: dict[Kind, str] = {
    "number": "Think step by step. End with a line '#### N', where N is the answer as a number.",
    "exact": "Think step by step. Write the answer alone on the last line.",
    "contains": "Answer the question.",
    "json": "Answer with one JSON object and nothing else.",
}
"""System message that asks for answers of the form that the reward reads."""
_HEAD = '''"""Rewards of {name}: a function takes the completions of a batch and returns a number for each.

Columns of the data come by their names, one value a completion. TRL's reward functions work here unchanged.
"""

from __future__ import annotations
{imports}
from typing import Any


def text_of(completion: Any) -> str:
    """The text of a completion, which is a text or a list of chat messages."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def texts_of(right: Any) -> list[str]:
    """The right answers of a row, of which any will do: the entries of a list, or the value itself."""
    return [str(value) for value in (right if isinstance(right, list) else [right]) if value is not None]

'''
_BODIES: dict[Kind, tuple[str, str]] = {
    "number": (
        "\nimport re\nfrom decimal import Decimal",
        '''
NUMBER = re.compile(r"-?\\d[\\d,]*(?:\\.\\d+)?")


def last_number(text: str) -> Decimal | None:
    """The last number in a text; None where there is none."""
    numbers = NUMBER.findall(text)
    return Decimal(numbers[-1].replace(",", "")) if numbers else None


def right_number(completions: list[Any], {answer}: list[Any], **columns: Any) -> list[float]:
    """1 where the last number of the completion is that of the right answer, else 0."""
    wanted = [{last_number(text) for text in texts_of(right)} for right in {answer}]
    numbers = [last_number(text_of(completion)) for completion in completions]
    return [float(mine is not None and mine in want) for mine, want in zip(numbers, wanted, strict=True)]
''',
    ),
    "exact": (
        "",
        '''
def plain(text: str) -> str:
    """A text in small letters, without spaces, quotes and full stops around it where anything else is left."""
    return " ".join((text.strip("\\"'.*` \\n\\t") or text).split()).casefold()


def right_answer(completions: list[Any], {answer}: list[Any], **columns: Any) -> list[float]:
    """1 where the last line of the completion, or all of it, is the right answer, else 0."""
    wanted = [{plain(text) for text in texts_of(right)} for right in {answer}]
    texts = [text_of(completion) for completion in completions]
    stated = [{plain(text), plain((text.strip().splitlines() or [""])[-1])} for text in texts]
    return [float(bool(mine & want)) for mine, want in zip(stated, wanted, strict=True)]
''',
    ),
    "contains": (
        "\nimport re",
        '''
def words(text: str) -> set[str]:
    """The words of a text, in small letters; what stands between spaces where it has none."""
    return set(re.findall(r"\\w+", text.casefold()) or text.split())


def overlap(mine: set[str], theirs: set[str]) -> float:
    """F1 of two sets of words."""
    return 2 * len(mine & theirs) / max(1, len(mine) + len(theirs))


def mentions(completions: list[Any], {answer}: list[Any], **columns: Any) -> list[float]:
    """F1 of the words of the completion and of the right answer: 1 where both have the same words, 0 where none."""
    pairs = [(words(text_of(c)), texts_of(right)) for c, right in zip(completions, {answer}, strict=True)]
    return [max(overlap(mine, words(text)) for text in texts) for mine, texts in pairs]
''',
    ),
    "json": (
        "\nimport json",
        '''
def valid_json(completions: list[Any], **columns: Any) -> list[float]:
    """1 where the completion is one JSON object, 0.2 where it is other JSON, else 0."""
    return [_grade(text_of(c)) for c in completions]


def _grade(text: str) -> float:
    try:
        return 1.0 if isinstance(json.loads(text), dict) else 0.2
    except ValueError:
        return 0.0
''',
    ),
}


def reward_file(name: str, kind: Kind, answer: str | None) -> str:
    """Return the text of a reward file."""
    imports, body = _BODIES[kind]
    head = _HEAD.replace("{name}", name).replace("{imports}", imports)
    return head + body.replace("{answer}", answer or "answer")


def test_file(module: str, kind: Kind, answer: str | None, example: str) -> str:
    """Return the text of a test that scores a right answer of the data, a wrong one and an empty one.

    Args:
        module: Name of the reward file, without its ending.
        kind: How answers are judged.
        answer: Column of the right answers.
        example: A right answer of the data.
    """
    function = NAMES[kind]
    right = '{"answer": 1}' if kind == "json" else example
    columns = "" if kind == "json" else f", {answer}=[RIGHT] * 3"
    return f'''"""A right answer gets more than a wrong and an empty one: run with pytest, add cases of your own."""

from {module} import {function}

RIGHT = {right!r}


def test_right_answers_get_more_than_wrong_and_empty_ones() -> None:
    right, wrong, empty = {function}([RIGHT, "lorem ipsum -987654321", ""]{columns})
    assert right == 1
    assert wrong < right
    assert empty < right
'''
