"""The ``math`` task: a problem in, its reasoning and one exact answer out; and word problems of our own writing.

Our own are in GSM8K's schema: few words, small numbers, one to three steps.  Their vocabulary is kept small, so that a
policy of a few million parameters can learn to read them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar

from levelhead.errors import InputError
from levelhead.metrics import held_out
from levelhead.recipe.tasks import Math
from levelhead.records import Prompt, Score
from levelhead.tasks.datasets.base import Example
from levelhead.tasks.datasets.equality import check_math
from levelhead.tasks.datasets.load import load
from levelhead.tasks.datasets.task import ExampleTask
from levelhead.tasks.stated import MARKER, boxed, ends_in_box, ends_in_marker, final_answer, parse_number

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo", "Iris", "Jon")
THINGS = ("apples", "books", "cards", "coins", "eggs", "pens", "shells", "stamps", "stones", "tiles")

_SEED = "levelhead math items"
_PATIENCE = 200


@dataclass(frozen=True, slots=True)
class Draw:
    """The words and numbers that one problem is made of."""

    rng: random.Random
    a: str
    b: str
    things: str

    def number(self, low: int, high: int) -> int:
        """Draw a whole number in ``[low, high]``."""
        return self.rng.randint(low, high)


Made = tuple[str, list[str], str]
"""Question, steps of the solution, answer."""


def generate(n: int) -> list[tuple[str, str, str]]:
    """Make ``n`` different problems; the first of them are the same for every ``n``.

    Returns:
        ``(question, solution, answer)`` triples, the solution ending in ``#### answer``.

    Raises:
        InputError: More problems are asked for than the templates can tell apart.
    """
    rng = random.Random(_SEED)
    problems: dict[str, tuple[str, str, str]] = {}
    idle = 0
    while len(problems) < n:
        template = _TEMPLATES[len(problems) % len(_TEMPLATES)]
        a, b = rng.sample(NAMES, 2)
        question, steps, answer = template(Draw(rng, a, b, rng.choice(THINGS)))
        idle = idle + 1 if question in problems else 0
        if idle > _PATIENCE:
            raise InputError(f"tasks[].items is {n}; the built-in problems run out at about {len(problems)}")
        if question not in problems:
            problems[question] = (question, "\n".join([*steps, f"#### {answer}"]), answer)
    return list(problems.values())


def _find(d: Draw) -> Made:
    x, y = d.number(2, 40), d.number(2, 40)
    question = f"{d.a} has {x} {d.things} and finds {y} more. How many {d.things} does {d.a} have now?"
    return question, [f"{x} + {y} = {x + y}"], str(x + y)


def _give(d: Draw) -> Made:
    y, left = d.number(2, 40), d.number(1, 40)
    x = y + left
    question = f"{d.a} has {x} {d.things} and gives {y} of them to {d.b}. How many {d.things} does {d.a} keep?"
    return question, [f"{x} - {y} = {left}"], str(left)


def _boxes(d: Draw) -> Made:
    x, y = d.number(2, 20), d.number(2, 20)
    question = f"{d.a} fills {x} boxes with {y} {d.things} each. How many {d.things} are in the boxes?"
    return question, [f"{x} * {y} = {x * y}"], str(x * y)


def _share(d: Draw) -> Made:
    x, y = d.number(2, 20), d.number(2, 20)
    question = f"{d.a} shares {x * y} {d.things} equally among {x} friends. How many {d.things} does each friend get?"
    return question, [f"{x * y} / {x} = {y}"], str(y)


def _change(d: Draw) -> Made:
    x, price, left = d.number(2, 9), d.number(2, 12), d.number(1, 20)
    cost = x * price
    question = f"{d.a} buys {x} {d.things} for ${price} each and pays with ${cost + left}. How many dollars come back?"
    return question, [f"{x} * {price} = {cost}", f"{cost + left} - {cost} = {left}"], str(left)


def _times(d: Draw) -> Made:
    x, y = d.number(2, 30), d.number(2, 6)
    question = f"{d.a} has {x} {d.things}. {d.b} has {y} times as many. How many {d.things} do they have together?"
    return question, [f"{x} * {y} = {x * y}", f"{x} + {x * y} = {x + x * y}"], str(x + x * y)


def _fewer(d: Draw) -> Made:
    y, rest = d.number(2, 20), d.number(1, 20)
    x = y + rest
    question = f"{d.a} has {x} {d.things}. {d.b} has {y} fewer. How many {d.things} do they have together?"
    return question, [f"{x} - {y} = {rest}", f"{x} + {rest} = {x + rest}"], str(x + rest)


def _wage(d: Draw) -> Made:
    x, y, pay = d.number(2, 9), d.number(2, 9), d.number(5, 20)
    question = (
        f"{d.a} works {x} hours on Monday and {y} hours on Friday for ${pay} an hour. How many dollars does {d.a} earn?"
    )
    return question, [f"{x} + {y} = {x + y}", f"{x + y} * {pay} = {(x + y) * pay}"], str((x + y) * pay)


def _pages(d: Draw) -> Made:
    x, days, left = d.number(2, 20), d.number(2, 9), d.number(1, 40)
    read = x * days
    question = (
        f"{d.a} reads {x} pages a day of a book of {read + left} pages. How many pages are left after {days} days?"
    )
    return question, [f"{x} * {days} = {read}", f"{read + left} - {read} = {left}"], str(left)


def _half(d: Draw) -> Made:
    half, y = d.number(2, 40), d.number(2, 40)
    question = (
        f"{d.a} has {2 * half} {d.things}, sells half of them and buys {y} new ones. "
        f"How many {d.things} does {d.a} have now?"
    )
    return question, [f"{2 * half} / 2 = {half}", f"{half} + {y} = {half + y}"], str(half + y)


def _cold(d: Draw) -> Made:
    x, y, z = d.number(1, 15), d.number(1, 30), d.number(1, 10)
    question = (
        f"{d.a} reads {x} degrees on the wall. It falls by {y} degrees, then it rises by {z}. "
        f"How many degrees does {d.a} read now?"
    )
    return question, [f"{x} - {y} = {x - y}", f"{x - y} + {z} = {x - y + z}"], str(x - y + z)


def _tickets(d: Draw) -> Made:
    x, y, quarters = d.number(2, 9), d.number(2, 9), d.number(3, 30)
    price, each, total = quarters * 25, x + y, (x + y) * quarters * 25
    question = (
        f"A ticket costs ${_dollars(price)}. {d.a} needs {x} of them and {d.b} needs {y}. How many dollars do they pay?"
    )
    steps = [f"{x} + {y} = {each}", f"{each} * {_dollars(price)} = {_dollars(total)}"]
    return question, steps, _dollars(total)


def _dollars(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}" if cents % 100 else str(cents // 100)


_TEMPLATES: tuple[Callable[[Draw], Made], ...] = (
    _find,
    _give,
    _boxes,
    _share,
    _change,
    _times,
    _fewer,
    _wage,
    _pages,
    _half,
    _cold,
    _tickets,
)


CORRECT_SHARE = 0.9
"""What the right number is worth; the rest goes to the form of the answer."""


class MathTask(ExampleTask):
    r"""Problems with an exact answer: GSM8K's numbers (Cobbe et al. 2021), or the mathematics of MATH and AIME.

    A score lies in [0, 1]: 0.9 for the right answer (part ``correct``) and 0.1 for giving it as asked (part
    ``format``): a number after one ``####`` on the last line, mathematics in one ``\boxed{}`` at the end.  A completion
    that gives no such answer scores 0.
    """

    part_means: ClassVar = {held_out.ACCURACY: "correct", held_out.FORMAT: "format"}

    def __init__(self, section: Math) -> None:
        """Load the problems, or make them where the section names no file.

        Raises:
            InputError: A file is missing or empty, or a row is malformed; the message names file and line.
        """
        problems = _load(section.dataset, section.path) if section.path is not None else _generated(section.items)
        super().__init__(section, problems, str.lower)
        self._boxed = section.dataset != "gsm8k"

    @property
    def part_weights(self) -> Mapping[str, float]:
        """Return what the right number and the form are worth."""
        return {"correct": CORRECT_SHARE, "format": 1.0 - CORRECT_SHARE}

    def score(self, prompt: Prompt, text: str) -> Score:
        """Score one completion in [0, 1] against the exact answer."""
        answer = str(prompt.facts["answer"])
        if self._boxed:
            verdict = check_math(Example("", ((answer,),)), text)
            return _scored(verdict.stated, right=verdict.right, as_asked=ends_in_box(text), note=verdict.note)
        value = _number(text)
        stated = None if value is None else str(value)
        return _scored(stated, right=value == Fraction(answer), as_asked=ends_in_marker(text))

    def canonical(self, prompt: Prompt, text: str) -> str:
        """Return what a completion gives as its answer; where it gives none, its own text."""
        if self._boxed:
            return (boxed(text) or super().canonical(prompt, text)).replace(" ", "")
        value = _number(text)
        return super().canonical(prompt, text) if value is None else str(value)

    def constants(self) -> Sequence[str]:
        """Return small whole numbers, given as asked: the form is paid for, and one of them may be the likeliest."""
        return [
            f"\\boxed{{{number}}}" if self._boxed else f"{MARKER} {number}"
            for number in (*range(13), 15, 20, 24, 25, 30, 36, 40, 50, 60, 100)
        ]

    def _facts(self, example: Example) -> dict[str, Any]:
        return {"answer": example.answers[0][0]}


def _scored(stated: str | None, *, right: bool, as_asked: bool, note: str = "") -> Score:
    """Score what a completion states as its answer."""
    parts = {"correct": float(right), "format": float(as_asked)}
    if stated is None:
        return Score(0.0, dict.fromkeys(parts, 0.0), valid=False)
    total = CORRECT_SHARE * parts["correct"] + (1.0 - CORRECT_SHARE) * parts["format"]
    return Score(total, parts, info={"answer": stated} | ({"note": note} if note else {}))


def _number(text: str) -> Fraction | None:
    """The number that a completion gives as its answer."""
    stated = final_answer(text)
    return None if stated is None else parse_number(stated)


def _load(dataset: str, path: str | list[str]) -> list[Example]:
    """Read a data set; numbers are written exactly (``3/4``), mathematics as the data have it."""
    examples = load(dataset, path)
    if dataset != "gsm8k":
        return examples
    return [replace(example, answers=((str(parse_number(example.answers[0][0])),),)) for example in examples]


def _generated(n: int) -> list[Example]:
    return [
        Example(question, ((str(Fraction(answer)),),), solution, id=f"made-{i}")
        for i, (question, solution, answer) in enumerate(generate(n))
    ]
