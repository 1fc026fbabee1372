"""What workflows are run on: problems from files, problems of our own, and how an epoch mixes them.

The words of our own are few and the sentences short on purpose: a policy of a few million parameters can learn to tell
the domains and the difficulties apart, and a large model can really solve the problems.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from levelhead.errors import InputError
from levelhead.tasks.datasets.base import DIFFICULTIES, Difficulty, Domain, Example
from levelhead.tasks.datasets.load import dataset_named
from levelhead.tasks.datasets.load import load as load_examples
from levelhead.tasks.datasets.mathematics import parse_gsm8k
from levelhead.tasks.files import Row, find_files, read_rows
from levelhead.tasks.splits import in_seed_order
from levelhead.tasks.stated import MARKER, parse_number

DOMAINS: tuple[Domain, ...] = ("math", "code", "qa")


@dataclass(frozen=True, slots=True)
class Problem(Example):
    """One problem that a workflow is to solve; the policy never sees its difficulty.

    Attributes:
        domain: What kind of problem it is.
        dataset: The public data set that it is from, whose checker judges answers; empty where the domain's does.
    """

    domain: Domain = "math"
    dataset: str = ""


def epoch(problems: Sequence[Problem], ratios: Mapping[Domain, float] | None, seed: int, *names: str) -> list[Problem]:
    """Return the problems of one epoch, in an order that depends on the seed alone.

    Without ratios, all of them, shuffled.  With ratios, as many of each domain as the scarcest allows, drawn afresh for
    every seed, and at every point of the order as close to the ratios as whole problems can be.

    Raises:
        InputError: A domain was asked for that has no problems.
    """
    if ratios is None:
        return in_seed_order(problems, seed, *names)
    pools: dict[Domain, list[Problem]] = {
        domain: in_seed_order([p for p in problems if p.domain == domain], seed, *names, domain) for domain in ratios
    }
    empty = [domain for domain, pool in pools.items() if not pool]
    if empty:
        raise InputError(f"tasks[].domains asks for {empty[0]!r}, and the data hold no problem of that domain")
    size = min(len(pool) / ratios[domain] for domain, pool in pools.items())
    quotas = {domain: max(1, int(size * ratio + 1e-9)) for domain, ratio in ratios.items()}
    # The k-th of n problems stands at (k + 1/2) / n of the way, whichever domain it is from.
    places = [((k + 0.5) / quota, domain, pools[domain][k]) for domain, quota in quotas.items() for k in range(quota)]
    return [problem for _, _, problem in sorted(places, key=lambda place: place[:2])]


def load(path: str | list[str], dataset: str | None = None) -> list[Problem]:
    """Read problems: of a public data set, from its own files, where one is named.

    A row with a ``domain`` holds ``question``, ``answer`` (a text, a number, or a list of texts any of which is right)
    and optionally ``difficulty`` (``easy|medium|hard``, ``medium`` unless given).  For ``code`` it also holds
    ``entry_point``, and tests in Python: in ``tests`` (or ``test``), or in ``answer`` where that asserts something.  A
    row without a ``domain`` is GSM8K's: ``answer`` ends in ``#### N``, and the number of calculations in it gives the
    difficulty (up to 2 easy, up to 4 medium).

    Raises:
        InputError: A file is missing or empty, or a row is malformed; the message names file and line.
    """
    if dataset is not None:
        domain, names = dataset_named(dataset).domain, [field.name for field in fields(Example)]
        return [
            Problem(**{name: getattr(example, name) for name in names}, domain=domain, dataset=dataset)
            for example in load_examples(dataset, path)
        ]
    files = find_files(path, [".jsonl", ".json"])
    stems = [file.stem for file in files]
    problems = []
    for file in files:
        label = file.stem if stems.count(file.stem) == 1 else str(file)
        for row in read_rows(file):
            make = _own if "domain" in row.values else _gsm8k
            problems.append(make(row, f"{label}-{row.line}"))
    return problems


def _gsm8k(row: Row, identifier: str) -> Problem:
    row.text("question")
    solution = row.text("answer")
    answer = solution.rsplit(MARKER, 1)[1].strip() if MARKER in solution else ""
    if parse_number(answer) is None:
        raise row.error(
            f"the field 'answer' must end in '{MARKER} N' (GSM8K); rows of another kind need a 'domain' "
            f"({', '.join(DOMAINS)})"
        )
    (example,) = parse_gsm8k(row)
    return Problem(example.question, example.answers, id=identifier, difficulty=example.difficulty)


def _own(row: Row, identifier: str) -> Problem:
    question = row.text("question").strip()
    domain = next(candidate for candidate in DOMAINS if candidate == row.choice("domain", DOMAINS))
    level = row.choice("difficulty", DIFFICULTIES) if "difficulty" in row.values else "medium"
    difficulty = next(candidate for candidate in DIFFICULTIES if candidate == level)
    answers = _answers(row)
    if domain != "code":
        return Problem(question, answers, id=identifier, difficulty=difficulty, domain=domain)
    entry_point = row.text("entry_point")
    if not entry_point.isidentifier():
        raise row.error(f"the field 'entry_point' must be the name of a function, not {entry_point[:40]!r}")
    tests = next((row.text(key) for key in ("tests", "test") if key in row.values), None)
    if tests is None:
        tests, answers = "\n".join(text for (text,) in answers), ()
        if "assert" not in tests:
            raise row.error("a code problem needs tests: give them in 'tests', as Python that asserts what must hold")
    return Problem(
        question, answers, id=identifier, difficulty=difficulty, entry_point=entry_point, tests=tests, domain=domain
    )


def _answers(row: Row) -> tuple[tuple[str], ...]:
    value = row.require("answer")
    if isinstance(value, list) and value and all(isinstance(one, str) and one.strip() for one in value):
        return tuple((one,) for one in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return ((str(value),),)
    return ((row.text("answer"),),)


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
    return Problem(" ".join(sentences), ((str(have),),), id=identifier, difficulty=difficulty)


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
    text = f"{' '.join(facts)} {question}"
    return Problem(text, ((values[0],),), id=identifier, difficulty=difficulty, domain="qa")


class _Step(NamedTuple):
    """One step of a list program: in words, in Python (of ``xs``), and as what it does."""

    words: str
    source: str
    does: Callable[[list[int]], Any]


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


_ENDS: Sequence[_Step] = (
    _Step("returns the sum", "sum(xs)", sum),
    _Step("returns how many there are", "len(xs)", len),
    _Step("returns them sorted", "sorted(xs)", sorted),
    _Step("returns them in reverse order", "xs[::-1]", lambda xs: xs[::-1]),
    _Step("returns the largest, or 0 if there is none", "max(xs, default=0)", lambda xs: max(xs, default=0)),
    _Step("returns the smallest, or 0 if there is none", "min(xs, default=0)", lambda xs: min(xs, default=0)),
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
    return Problem(
        question,
        ((solution,),),
        id=identifier,
        difficulty=difficulty,
        entry_point=name,
        tests="\n".join(tests),
        domain="code",
    )


_MAKERS: dict[Domain, Callable[[random.Random, str, Difficulty], Problem]] = {
    "math": _math,
    "code": _code,
    "qa": _qa,
}
