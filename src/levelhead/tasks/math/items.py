"""Word problems of our own writing, in GSM8K's schema: few words, small numbers, one to three steps.

The vocabulary is kept small on purpose, so that a policy of a few million parameters can learn to read them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from levelhead.errors import InputError

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
