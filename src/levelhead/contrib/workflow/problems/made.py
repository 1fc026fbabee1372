"""Problems of our own writing in all three domains, easy, medium and hard, for runs without data.

The words are few and the sentences short on purpose: a policy of a few million parameters can learn to tell the
domains and the difficulties apart, and a large model can really solve the problems.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from levelhead.contrib.workflow.problems.base import DIFFICULTIES, DOMAINS, Difficulty, Domain, Problem
from levelhead.errors import InputError

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo", "Iris", "Jon", "Kim", "Leo")
THINGS = ("apples", "books", "cards", "coins", "eggs", "pens", "shells", "stamps")
CITIES = ("Oslo", "Rome", "Lima", "Bern", "Cairo", "Delhi", "Kyoto", "Quito")
JOBS = ("baker", "pilot", "nurse", "judge", "miner", "tailor", "farmer", "singer")
KIN = ("brother", "sister", "boss", "friend", "cousin", "neighbour")
FUNCTIONS = ("solve", "compute", "crunch", "digest", "measure", "collect", "process", "figure")

_SEED = "levelhead workflow problems"
_PATIENCE = 500


def generate(n: int) -> list[Problem]:
    """Make ``n`` different problems, evenly over domains and difficulties; a prefix of a longer list is a shorter one.

    Raises:
        InputError: More are asked for than there are.
    """
    rng = random.Random(_SEED)
    places = [(domain, difficulty) for difficulty in DIFFICULTIES for domain in DOMAINS]
    by_question: dict[str, Problem] = {}
    idle = 0
    while len(by_question) < n:
        domain, difficulty = places[len(by_question) % len(places)]
        problem = _MAKERS[domain](rng, f"made-{domain}-{len(by_question)}", difficulty)
        idle = idle + 1 if problem.question in by_question else 0
        if idle > _PATIENCE:
            raise InputError(f"tasks[].items is {n}; the built-in problems run out at about {len(by_question)}")
        by_question.setdefault(problem.question, problem)
    return list(by_question.values())


def _math(rng: random.Random, identifier: str, difficulty: Difficulty) -> Problem:
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    have = rng.randint(5, 40)
    sentences = [f"{name} has {have} {things}."]
    for _ in range({"easy": 1, "medium": 3, "hard": 5}[difficulty]):
        have, sentence = _event(rng, name, have)
        sentences.append(sentence)
    sentences.append(f"How many {things} does {name} have now?")
    return Problem(identifier, " ".join(sentences), (str(have),), "math", difficulty)


def _event(rng: random.Random, name: str, have: int) -> tuple[int, str]:
    kind = rng.randrange(4)
    if kind == 0 or have < 4:
        more = rng.randint(2, 30)
        return have + more, f"{name} finds {more} more."
    if kind == 1:
        less = rng.randint(1, have - 1)
        return have - less, f"{name} loses {less}."
    if kind == 2 and have % 2 == 0:
        return have // 2, f"{name} sells half of them."
    times = rng.randint(2, 4)
    return have * times, f"Then {name} has {times} times as many."


def _qa(rng: random.Random, identifier: str, difficulty: Difficulty) -> Problem:
    hops = {"easy": 0, "medium": 1, "hard": 2}[difficulty]
    people = rng.sample(NAMES, hops + 3)
    chain, others = people[: hops + 1], people[hops + 1 :]
    kin = rng.sample(KIN, hops)
    facts = [f"The {kin[i]} of {chain[i]} is {chain[i + 1]}." for i in range(hops)]
    ask_city = rng.random() < 0.5
    values = rng.sample(CITIES if ask_city else JOBS, len(others) + 1)
    for person, value in zip([chain[-1], *others], values, strict=True):
        facts.append(f"{person} lives in {value}." if ask_city else f"{person} is a {value}.")
    rng.shuffle(facts)
    who = chain[0]
    for relation in kin:
        who = f"the {relation} of {who}"
    question = f"Where does {who} live?" if ask_city else f"What is the job of {who}?"
    return Problem(identifier, f"{' '.join(facts)} {question}", (values[0],), "qa", difficulty)


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of a list program: in words, in Python (of ``xs``), and as what it does."""

    words: str
    source: str
    does: Callable[[list[int]], list[int]]


@dataclass(frozen=True, slots=True)
class _End:
    """The last step of a list program: in words, in Python (of ``xs``), and as what it does."""

    words: str
    source: str
    does: Callable[[list[int]], object]


def _steps(rng: random.Random) -> list[_Step]:
    """Draw the steps a program is made of, filters first: later filters of a kind would be empty."""
    k, add, times = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 5)
    keep = [
        _Step("keeps the even numbers", "[x for x in xs if x % 2 == 0]", lambda xs: [x for x in xs if x % 2 == 0]),
        _Step("keeps the odd numbers", "[x for x in xs if x % 2 == 1]", lambda xs: [x for x in xs if x % 2 == 1]),
        _Step(f"keeps numbers above {k}", f"[x for x in xs if x > {k}]", lambda xs: [x for x in xs if x > k]),
        _Step(f"keeps numbers below {k}", f"[x for x in xs if x < {k}]", lambda xs: [x for x in xs if x < k]),
    ]
    change = [
        _Step(f"adds {add} to each", f"[x + {add} for x in xs]", lambda xs: [x + add for x in xs]),
        _Step(f"multiplies each by {times}", f"[x * {times} for x in xs]", lambda xs: [x * times for x in xs]),
        _Step("squares each", "[x * x for x in xs]", lambda xs: [x * x for x in xs]),
        _Step("drops repeats", "list(dict.fromkeys(xs))", lambda xs: list(dict.fromkeys(xs))),
    ]
    return [rng.choice(keep), *rng.sample(change, 2)]


_ENDS: Sequence[_End] = (
    _End("returns the sum", "sum(xs)", sum),
    _End("returns how many there are", "len(xs)", len),
    _End("returns them sorted", "sorted(xs)", sorted),
    _End("returns them in reverse order", "xs[::-1]", lambda xs: xs[::-1]),
    _End("returns the largest, or 0 if there is none", "max(xs, default=0)", lambda xs: max(xs, default=0)),
    _End("returns the smallest, or 0 if there is none", "min(xs, default=0)", lambda xs: min(xs, default=0)),
)


def _code(rng: random.Random, identifier: str, difficulty: Difficulty) -> Problem:
    steps = _steps(rng)
    if difficulty != "hard":
        steps = rng.sample(steps, {"easy": 1, "medium": 2}[difficulty])
    end, name = rng.choice(_ENDS), rng.choice(FUNCTIONS)
    *first, last = [step.words for step in steps]
    words = f"{', '.join([*first, last])} and {end.words}"
    question = f"Write a Python function {name}(xs) that takes a list of whole numbers, {words}."
    body = "".join(f"    xs = {step.source}\n" for step in steps)
    solution = f"def {name}(xs):\n{body}    return {end.source}\n"
    tests = []
    for size in (0, 1, 4, 6, 9):
        xs = [rng.randint(0, 15) for _ in range(size)]
        value = xs
        for step in steps:
            value = step.does(value)
        tests.append(f"assert {name}({xs}) == {end.does(value)!r}")
    return Problem(identifier, question, (solution,), "code", difficulty, name, "\n".join(tests))


_MAKERS: dict[Domain, Callable[[random.Random, str, Difficulty], Problem]] = {
    "math": _math,
    "code": _code,
    "qa": _qa,
}
