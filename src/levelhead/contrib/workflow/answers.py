"""How right the answer of a workflow is, by domain: one of five levels."""

from __future__ import annotations

import re
from functools import partial

from levelhead.contrib.workflow.problems import Problem
from levelhead.contrib.workflow.quantity import Quantity, read_quantity, same_value
from levelhead.tasks.datasets.load import dataset_named
from levelhead.tasks.sandbox import Bench
from levelhead.tasks.sandbox.programs import extract_program, run_tests
from levelhead.tasks.stated import final_answer, parse_number
from levelhead.tasks.text_match import exact_match, token_f1

_CJK = re.compile(r"([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])")
_OUTER = re.compile(r"^[\s*_`\"'\u201c\u2018]+|[\s*_`\"'\u201d\u2019.]+$")


def grade_words(answer: str, references: tuple[str, ...]) -> float:
    """Return the correctness level of a text, against the reference it is closest to.

    1.0: the same once normalised (Rajpurkar et al. 2016: case, punctuation, articles).  0.7: token F1 of at least 0.8.
    0.4: at least 0.4.  0.2: any other text.  0.0: none.  Characters of scripts without spaces are tokens.
    """
    text = _OUTER.sub("", stated_answer(answer))
    return max((_grade(text, reference) for reference in references), default=0.0)


def _grade(text: str, reference: str) -> float:
    if exact_match(text, reference):
        return 1.0
    score = token_f1(_CJK.sub(r" \1 ", text), _CJK.sub(r" \1 ", reference))
    if score >= 0.8:
        return 0.7
    if score >= 0.4:
        return 0.4
    return 0.2 if text.strip() else 0.0


NEAR = 0.01
"""Relative error up to which a number is nearly right."""

ROUGH = 0.1
"""Relative error up to which a number is partly right."""


_FILLING = re.compile(r"\\(?:left|right|[!,;: ])|[\s$]")


def grade_number(answer: str, reference: str) -> float:
    """Return the correctness level of a numeric answer.

    1.0: the same quantity, exactly, units converted, or rounded to the reference's decimals.  0.7: within 1%.  0.4:
    within 10%, of the opposite sign, off by a power of ten up to a thousand, or the right number in a wrong unit.  0.2:
    another number.  0.0: no number, or several.  A reference that is no number (an interval, a formula) is compared
    as text without spaces, and as words.
    """
    wanted = _read(reference)
    if wanted is None:
        same = _FILLING.sub("", stated_answer(answer)) == _FILLING.sub("", reference)
        return 1.0 if same else grade_words(answer, (reference,))
    stated = _read(stated_answer(answer))
    if stated is None:
        return 0.0
    if same_value(stated, wanted):
        return 1.0
    if stated.unit is not None and wanted.unit is not None:
        bare = same_value(Quantity(stated.value), Quantity(wanted.value))
        return 0.4 if bare else 0.2
    return _near(float(stated.value), float(wanted.value), wanted.decimals)


def stated_answer(answer: str) -> str:
    """Return what a text says that its answer is, else its last line."""
    stated = final_answer(answer)
    if stated is not None:
        return stated
    lines = [line for line in answer.strip().splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _read(text: str) -> Quantity | None:
    text = text.strip().strip("*`").strip().rstrip(".").strip()
    text = text.rsplit("=", 1)[-1].strip()
    quantity = read_quantity(text)
    if quantity is not None:
        return quantity
    # A sentence around one plain number ("She has 72 clips left").
    number = parse_number(text)
    return read_quantity(f"{number.numerator}/{number.denominator}") if number is not None else None


def _near(given: float, wanted: float, decimals: int | None) -> float:
    if decimals is not None and abs(given - wanted) <= 0.5 * 10.0**-decimals * (1 + 1e-9):
        return 1.0
    error = abs(given - wanted)
    scale = max(abs(wanted), 1e-12)
    if error <= NEAR * scale:
        return 0.7
    powers = (wanted * 10.0**power for power in (-3, -2, -1, 1, 2, 3))
    kindred = [-wanted, *powers] if wanted != 0 else []
    if error <= ROUGH * scale or any(abs(given - other) <= 1e-9 * abs(other) for other in kindred):
        return 0.4
    return 0.2


async def grade(problem: Problem, answer: str, bench: Bench) -> tuple[float, str]:
    """Return how right an answer is, and why it is not where that can be said.

    Code is run in the sandbox, at a seat of the bench.  A problem of a public data set is judged by its checker.

    Returns:
        The level, one of 0, 0.2, 0.4, 0.7 and 1, and a note.
    """
    if problem.dataset:
        verdict = await bench.run(partial(dataset_named(problem.dataset).check, problem), answer)
        return verdict.level, verdict.note
    if problem.domain == "code":
        name = problem.entry_point
        run = await bench.run(run_tests, extract_program(answer, name), problem.tests, name)
        return run.level, run.note
    references = tuple(text for (text,) in problem.answers)
    if problem.domain == "qa":
        return grade_words(answer, references), ""
    return max(grade_number(answer, reference) for reference in references), ""
