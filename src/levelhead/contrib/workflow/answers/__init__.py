"""How right the answer of a workflow is, by domain: one of five levels."""

from __future__ import annotations

from functools import partial

from levelhead.contrib.workflow.answers.number import grade_number
from levelhead.contrib.workflow.answers.words import grade_words
from levelhead.contrib.workflow.problems.base import Problem
from levelhead.tasks.datasets.registry import dataset_named
from levelhead.tasks.sandbox import Bench
from levelhead.tasks.sandbox.programs import TestRun, extract_program, run_tests

__all__ = ["TestRun", "extract_program", "grade", "grade_number", "grade_words", "run_tests"]


async def grade(problem: Problem, answer: str, bench: Bench) -> tuple[float, str]:
    """Return how right an answer is, and why it is not where that can be said.

    Code is run in the sandbox, at a seat of the bench.  A problem of a public data set is judged by its checker.

    Returns:
        The level, one of 0, 0.2, 0.4, 0.7 and 1, and a note.
    """
    if problem.example is not None:
        verdict = await bench.run(partial(dataset_named(problem.dataset).check, problem.example), answer)
        return verdict.level, verdict.note
    if problem.domain == "code":
        name, tests = problem.entry_point or "", problem.tests or ""
        run = await bench.run(run_tests, extract_program(answer, name), tests, name)
        return run.level, run.note
    if problem.domain == "qa":
        return grade_words(answer, problem.answers), ""
    return max(grade_number(answer, reference) for reference in problem.answers), ""
