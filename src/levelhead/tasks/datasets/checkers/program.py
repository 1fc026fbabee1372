"""Programs: run against the example's tests in the sandbox."""

from __future__ import annotations

import re

from levelhead.recipe.workflow import SandboxLimits
from levelhead.tasks.datasets.base import Example, Verdict
from levelhead.tasks.sandbox.programs import extract_program, run_tests

_BODY = re.compile(r"^[ \t]+\S")


def check_program(example: Example, text: str, limits: SandboxLimits | None = None) -> Verdict:
    """Judge a program by the example's tests; a text that holds no such function states no answer.

    The preamble stands before it, so that it may use what the preamble defines; an answer that only goes on where the
    preamble ends (the body of its last function) is taken as that.

    Raises:
        InputError: The limits require isolation, and the system allows none.
    """
    if not text.strip():
        return Verdict(right=False, score=0.0, stated=None, note="no program")
    program = extract_program(text, example.entry_point)
    whole = re.search(rf"^(?:async\s+)?def\s+{re.escape(example.entry_point)}\s*\(", program, re.MULTILINE)
    joint = "\n\n" if whole or not _BODY.match(program) else ""
    source = f"{example.preamble}{joint}{program}" if example.preamble else program
    run = run_tests(source, example.tests, example.entry_point, limits)
    if run.total == 0:
        return Verdict(right=False, score=0.0, stated=None, note=run.note)
    return Verdict(run.passed == run.total, run.passed / run.total, program, run.note)
