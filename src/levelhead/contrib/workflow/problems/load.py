"""Problems from files: GSM8K, or JSON Lines with a domain."""

from __future__ import annotations

from levelhead.contrib.workflow.problems.base import DIFFICULTIES, DOMAINS, Problem
from levelhead.tasks.datasets import gsm8k
from levelhead.tasks.datasets.base import Example
from levelhead.tasks.datasets.checkers.spans import SEPARATOR
from levelhead.tasks.datasets.load import load as load_examples
from levelhead.tasks.datasets.registry import dataset_named
from levelhead.tasks.files import Row, find_files, read_rows
from levelhead.tasks.numbers import MARKER, parse_number


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
        return [_public(example, dataset) for example in load_examples(dataset, path)]
    files = find_files(path, [".jsonl", ".json"])
    stems = [file.stem for file in files]
    problems = []
    for file in files:
        label = file.stem if stems.count(file.stem) == 1 else str(file)
        for row in read_rows(file):
            make = _own if "domain" in row.values else _gsm8k
            problems.append(make(row, f"{label}-{row.line}"))
    return problems


def _public(example: Example, dataset: str) -> Problem:
    answers = tuple(f"{SEPARATOR} ".join(spans) for spans in example.answers)
    return Problem(
        example.id,
        example.question,
        answers,
        dataset_named(dataset).domain,
        example.difficulty,
        example.entry_point or None,
        example.tests or None,
        dataset,
        example,
    )


def _gsm8k(row: Row, identifier: str) -> Problem:
    row.text("question")
    solution = row.text("answer")
    answer = solution.rsplit(MARKER, 1)[1].strip() if MARKER in solution else ""
    if parse_number(answer) is None:
        raise row.error(
            f"the field 'answer' must end in '{MARKER} N' (GSM8K); rows of another kind need a 'domain' "
            f"({', '.join(DOMAINS)})"
        )
    (example,) = gsm8k.parse(row)
    return Problem(identifier, example.question, example.answers[0], "math", example.difficulty)


def _own(row: Row, identifier: str) -> Problem:
    question = row.text("question").strip()
    domain = next(candidate for candidate in DOMAINS if candidate == row.choice("domain", DOMAINS))
    level = row.choice("difficulty", DIFFICULTIES) if "difficulty" in row.values else "medium"
    difficulty = next(candidate for candidate in DIFFICULTIES if candidate == level)
    answers = _answers(row)
    if domain != "code":
        return Problem(identifier, question, answers, domain, difficulty)
    entry_point = row.text("entry_point")
    if not entry_point.isidentifier():
        raise row.error(f"the field 'entry_point' must be the name of a function, not {entry_point[:40]!r}")
    tests = next((row.text(key) for key in ("tests", "test") if key in row.values), None)
    if tests is None:
        tests, answers = "\n".join(answers), ()
        if "assert" not in tests:
            raise row.error("a code problem needs tests: give them in 'tests', as Python that asserts what must hold")
    return Problem(identifier, question, answers, domain, difficulty, entry_point, tests)


def _answers(row: Row) -> tuple[str, ...]:
    value = row.require("answer")
    if isinstance(value, list) and value and all(isinstance(one, str) and one.strip() for one in value):
        return tuple(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (str(value),)
    return (row.text("answer"),)
