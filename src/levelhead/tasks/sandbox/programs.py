"""How right a program is: it is run against tests, in the sandbox."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from levelhead.recipe.workflow import SandboxLimits
from levelhead.tasks.sandbox import run_program

_FENCED = re.compile(r"```[\w-]*[ \t]*\n(.*?)```", re.DOTALL)

_HARNESS = Path(__file__).with_name("harness.py")


@dataclass(frozen=True, slots=True)
class TestRun:
    """What tests said of a program.

    Attributes:
        passed: Tests that held.
        total: Tests there are, and other statements that failed; 0 where the program could not even be loaded.
        note: The first thing that went wrong, for a reviser and for whoever reads samples.
    """

    passed: int
    total: int
    note: str = ""

    @property
    def level(self) -> float:
        """The correctness level: 1.0 all hold, 0.7 four in five, 0.4 two in five, 0.2 fewer, 0.0 no such program."""
        if self.total == 0:
            return 0.0
        share = self.passed / self.total
        return 1.0 if share == 1.0 else 0.7 if share >= 0.8 else 0.4 if share >= 0.4 else 0.2


def extract_program(answer: str, entry_point: str) -> str:
    """Return the program of an answer: the last code fence that defines the function, else the last, else all of it."""
    blocks = [block for block in _FENCED.findall(answer) if block.strip()]
    defining = [block for block in blocks if re.search(rf"\bdef\s+{re.escape(entry_point)}\s*\(", block)]
    return str((defining or blocks or [answer])[-1])


def run_tests(source: str, tests: str, entry_point: str, limits: SandboxLimits | None = None) -> TestRun:
    """Run a program against tests, in the sandbox.

    A test is a statement at the top level of the tests, or in the body of a ``check(candidate)``, that is neither an
    import, a definition nor an assignment: an ``assert``, a loop or a block with assertions, a call of a helper.
    Functions called ``test...`` that nothing calls are called.  A test holds where it raises nothing.  Any other
    statement that raises counts as one more test that failed, and so does an early end of the process.  Where the tests
    assert something and no assertion was reached, none holds.  What the program prints is thrown away.
    """
    # The mark tells the harness's lines from anything else on the pipe; it is no secret from a determined program.
    mark = secrets.token_hex(8)
    settings = ", ".join(json.dumps(text) for text in (f"{mark} ", source, tests, entry_point))
    result = run_program(f"{_HARNESS.read_text(encoding='utf-8')}\n\nmain({settings})\n", limits)
    reports = [line[len(mark) + 1 :] for line in result.stdout.splitlines() if line.startswith(f"{mark} ")]
    total = next((int(line.split()[1]) for line in reports if line.startswith("total ")), 0)
    failures = [line for line in reports if line.startswith("fail")]
    end = next((line.split() for line in reports if line.startswith("end ")), None)
    if end is not None:
        passed, tests_run = int(end[1]), int(end[2])
        return TestRun(min(passed, tests_run), tests_run, failures[0] if failures else "")
    if reports and total == 0:
        return TestRun(0, 0, f"the program has no function {entry_point}" if reports[0] == "missing" else reports[0])
    passed = sum(line == "pass" for line in reports)
    note = result.note if result.status == "refused" else f"the program ended early ({result.status})"
    # Whatever held, one did not come to its end.
    return TestRun(passed, max(total, passed + 1) if total else 0, note)
