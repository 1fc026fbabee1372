"""Answers are graded in five levels: exact quantities, words, programs under test."""

from __future__ import annotations

import asyncio
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.contrib.workflow.answers import grade, grade_number, grade_words
from levelhead.contrib.workflow.problems import Problem, generate
from levelhead.contrib.workflow.quantity import read_quantity, same_value
from levelhead.recipe.workflow import SandboxLimits
from levelhead.tasks.sandbox import Bench, ProgramResult, programs
from levelhead.tasks.sandbox.programs import extract_program, run_tests
from sandboxed import can_run

LIMITS = SandboxLimits(cpu_s=1, wall_s=60, isolation="none")


@pytest.mark.parametrize(
    ("answer", "reference", "level"),
    [
        ("72", "72", 1.0),
        ("#### 72", "72", 1.0),
        ("So she has 72.\nThe answer is 72 clips.", "72", 1.0),
        (r"\boxed{\frac{3}{4}}", "0.75", 1.0),
        ("3/4", "75%", 1.0),
        ("75", "75%", 1.0),
        ("50 %", "50", 1.0),
        ("1 1/2", "1.5", 1.0),
        ("$1,234.50", "1234.5", 1.0),
        ("x = 5", "5", 1.0),
        ("2^10", "1024", 1.0),
        (r"2\sqrt{3}", "sqrt(12)", 1.0),
        ("7 - 3", "4", 1.0),
        ("2^3 - 1", "-3 + 10", 1.0),
        (r"\frac{\pi}{2}", "pi/2", 1.0),
        ("12 km", "12000 m", 1.0),
        ("72 km/h", "20 m/s", 1.0),
        ("20 meters per second", "72 km/h", 1.0),
        ("5 square feet", "720 square inches", 1.0),
        ("2 hours", "120 min", 1.0),
        ("12 km", "12", 1.0),
        ("18 dollars", "18", 1.0),
        ("3.3333", "3.33", 1.0),
        ("1e3", "1000", 1.0),
        ("0", "0", 1.0),
        ("99", "100", 0.7),
        ("3.14", "3.14159", 0.7),
        ("105", "100", 0.4),
        ("-72", "72", 0.4),
        ("7200", "72", 0.4),
        ("12 km", "12 miles", 0.4),
        ("5 m", "5 s", 0.4),
        ("5", "72", 0.2),
        ("7 m", "5 s", 0.2),
        ("3 or 4", "3", 0.0),
        ("no idea", "72", 0.0),
        ("", "72", 0.0),
        ("1/0", "72", 0.0),
        ("9^9^9", "72", 0.0),
        ("(2, 3)", "(2,3)", 1.0),
    ],
)
def test_numbers_are_graded_by_value_unit_and_distance(answer: str, reference: str, level: float) -> None:
    assert grade_number(answer, reference) == level


@given(st.fractions(max_denominator=999).filter(lambda value: abs(value) < 10**6))
@settings(deadline=None)
def test_a_fraction_is_the_same_in_every_spelling(value: object) -> None:
    top, bottom = value.numerator, value.denominator  # type: ignore[attr-defined]
    spellings = [f"{top}/{bottom}", rf"\frac{{{top}}}{{{bottom}}}", f"({top}) / {bottom}", f"-{-top}/{bottom}"]
    read = [read_quantity(text) for text in spellings if "--" not in text]
    assert all(one is not None and same_value(one, read[0]) for one in read if read[0] is not None)
    assert read[0] is not None
    assert math.isclose(float(read[0].value), top / bottom)


@given(st.text("0123456789+-*/^().,% sqrtpikmh$\\{}", max_size=60))
@settings(deadline=None, max_examples=150)
def test_reading_a_quantity_never_fails_and_never_takes_long(text: str) -> None:
    began = time.process_time()
    read_quantity(text)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "bomb", ["9" * 100, "(" * 50 + "1" + ")" * 50, "10^(10^10)", "((2^60)^60)^60", "sqrt(" * 11 + "2" + ")" * 11]
)
def test_numbers_made_to_take_forever_do_not(bomb: str) -> None:
    began = time.process_time()
    grade_number(bomb, "2")
    assert time.process_time() - began < 5


def test_nothing_of_an_answer_is_evaluated() -> None:
    assert read_quantity("__import__('os').getpid()") is None
    assert read_quantity("exit(0)") is None


@pytest.mark.parametrize(
    ("answer", "references", "level"),
    [
        ("The Eiffel Tower.", ("eiffel tower",), 1.0),
        ("He lives there.\n#### Oslo", ("Oslo",), 1.0),
        ("**Oslo**", ("Rome", "Oslo"), 1.0),
        ("the old town hall of Oslo", ("old town hall Oslo",), 0.7),
        ("Paris, France", ("Paris",), 0.4),
        ("\u5317\u4eac\u5e02", ("\u5317\u4eac",), 0.7),
        ("London", ("Oslo",), 0.2),
        ("", ("Oslo",), 0.0),
        ("  \n ", ("Oslo",), 0.0),
    ],
)
def test_words_are_graded_by_match_and_f1(answer: str, references: tuple[str, ...], level: float) -> None:
    assert grade_words(answer, references) == level


def test_without_a_marker_the_last_line_is_the_answer() -> None:
    assert grade_words("It is not Rome.\nParis\n\n", ("Paris",)) == 1.0
    assert grade_number("First 5.\n7", "7") == 1.0


@can_run
@pytest.mark.parametrize(
    ("source", "tests", "level", "note"),
    [
        ("def f(x): return x", "assert f(1) == 1\nassert f(2) == 2", 1.0, ""),
        (
            "def f(x): return x",
            "\n".join(f"assert f({i}) == {i}" for i in range(9)) + "\nassert f(9) == 0",
            0.7,
            "f(9)",
        ),
        ("def f(x): return x", "assert f(1) == 1\nassert f(2) == 3", 0.4, "f(2) == 3"),
        ("def f(x): return 0", "assert f(1) == 1\nassert f(2) == 2", 0.2, "f(1) == 1"),
        ("def g(x): return x", "assert f(1) == 1", 0.0, "no function f"),
        ("def f(x:", "assert f(1) == 1", 0.0, "SyntaxError"),
        ("while True: pass", "assert f(1) == 1", 0.0, "timeout"),
        ("def f(x):\n  while x == 2: pass\n  return x", "assert f(1) == 1\nassert f(2) == 2", 0.4, "timeout"),
        ("def f(x): raise SystemExit(0)", "assert f(1) == 1", 0.2, "SystemExit"),
        ("print('pass\\n' * 10**6)\ndef f(x): return 0", "assert f(1) == 1", 0.2, "f(1) == 1"),
        ("def f(x): return '{}\\n{x}'", "assert f(1) == '{}\\n{x}'", 1.0, ""),
        (
            "def f(x): return x",
            "def check(candidate):\n  assert candidate(1) == 1\n  assert candidate(2) == 2\ncheck(f)",
            1.0,
            "",
        ),
        (
            "def f(x): return x",
            "import math\nlimit = math.pi\ndef check(c):\n  for i in range(3): assert c(i) < limit\n",
            1.0,
            "",
        ),
    ],
)
def test_programs_are_graded_by_the_tests_they_pass(source: str, tests: str, level: float, note: str) -> None:
    run = run_tests(source, tests, "f", LIMITS)
    assert run.level == level
    assert note in run.note


HELPER = "def near(a, b):\n  assert abs(a - b) < 1\n"
BLIND = """
import os
def f(x):
  for fd in range(3, 12):
    try: os.write(fd, b'pass\\nend 9 9\\n')
    except OSError: pass
  return 0
"""
BUILTINS = """
import builtins
builtins.compile = lambda *a, **k: (lambda: 0).__code__
builtins.AssertionError = type('Quiet', (), {})
def f(x): return 0
"""


@can_run
@pytest.mark.parametrize(
    ("source", "tests", "passed", "total", "note"),
    [
        # A loop, a helper and set-up code are part of the tests.
        (
            "def f(x): return x if x < 5 else 0",
            "assert f(1) == 1\nfor i in range(9): assert f(i) == i",
            1,
            2,
            "for i in",
        ),
        ("def f(x): return x if x < 5 else 0", HELPER + "assert f(1) == 1\nnear(f(8), 8)", 1, 2, "near(f(8), 8)"),
        ("def f(x): return x", HELPER + "assert f(1) == 1\nnear(f(8), 8)", 2, 2, ""),
        ("def f(x): return None", "first = f(1) + 1\nassert f(2) is None", 1, 2, "TypeError"),
        ("def f(x): return x", "if f(2) != 3: raise ValueError('three')", 0, 1, "three"),
        ("def f(x): return x", "try:\n  f(1)\nexcept TypeError: pass\nelse: assert False", 0, 1, "AssertionError"),
        ("def f(x): raise TypeError", "try:\n  f(1)\nexcept TypeError: pass\nelse: assert False", 1, 1, ""),
        # The process ends early, by the program or by the tests.
        ("import os\ndef f(x):\n  if x: os._exit(0)\n  return x", "assert f(0) == 0\nlast = f(1)", 1, 2, "ended early"),
        ("def f(x): return x", "assert f(1) == 1\nimport sys\nsys.exit(f(1))", 1, 2, "SystemExit"),
        ("import os, signal\ndef f(x): os.kill(os.getpid(), signal.SIGKILL)", "f(1)", 0, 1, "ended early"),
        # Tests that never come to assert anything hold nothing.
        ("def f(x): return 0", "import math", 0, 1, "never assert"),
        ("def f(x): return 0", "class T:\n  def test(self): assert f(1) == 1\nprint(f(1))", 0, 1, "never assert"),
        ("def f(x): return 0", "for i in []: assert f(i) == i", 0, 1, "never assert"),
        ("def f(x): return 0", "def near(a): assert a == 1\nf(1)", 0, 1, "never assert"),
        # Tests in other forms are called.
        (
            "def f(x): return 0",
            "def test_one(): assert f(1) == 1\ndef test_none(): assert f(0) == 0",
            1,
            2,
            "test_one()",
        ),
        ("def f(x): return 0", "if __name__ == '__main__': assert f(1) == 1", 0, 1, "AssertionError"),
        (
            "def f(x): return 0",
            "def check(c):\n  if c(0) == 0: return\n  assert c(1) == 1\ncheck(f)",
            0,
            1,
            "never assert",
        ),
        ("def f(x): return 0", "def check(c, y=1):\n  assert c(y) == 1\ncheck(f)", 0, 1, "AssertionError"),
        ("def f(x): return 1", "def check(c, y=1):\n  assert c(y) == 1\n  return True", 1, 1, ""),
        ("def f(x): return 0", "def f(", 0, 0, "the tests: SyntaxError"),
        # Lines on any pipe, copies of the process and changed builtins forge nothing.
        (
            "import os\nfor fd in range(1, 12):\n  try: os.write(fd, b'x')\n  except OSError: pass\ndef f(x): return 0",
            "assert f(1) == 1\nassert f(0) == 0",
            1,
            2,
            "f(1) == 1",
        ),
        (BLIND, "assert f(1) == 1\nassert f(2) == 2", 0, 2, "f(1) == 1"),
        (
            "import os\nside = os.fork()\ndef f(x): return bool(side)",
            "assert f(1) is True\nassert f(2) is False",
            1,
            2,
            "f(2)",
        ),
        (BUILTINS, "assert f(1) == 1", 0, 1, "f(1) == 1"),
        (
            "import __main__\nnames = vars(__main__)\ndef f(x):\n  names['tell']('pass')\n  return 0",
            "assert f(1) == 1",
            0,
            1,
            "",
        ),
    ],
)
def test_any_failure_of_the_tests_is_a_failure(source: str, tests: str, passed: int, total: int, note: str) -> None:
    run = run_tests(source, tests, "f", LIMITS)
    assert (run.passed, run.total) == (passed, total)
    assert note in run.note
    assert run.level < 1.0 or passed == total > 0


@can_run
def test_generated_code_problems_accept_their_solution_and_refuse_a_stub() -> None:
    for problem in [problem for problem in generate(45) if problem.domain == "code"][::4]:
        assert run_tests(problem.answers[0][0], problem.tests, problem.entry_point, LIMITS).level == 1.0
        stub = f"def {problem.entry_point}(xs): return None"
        assert run_tests(stub, problem.tests, problem.entry_point, LIMITS).level == 0.2


def test_a_note_says_how_a_program_ended_and_not_which_wall_it_ran_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    late = ProgramResult("timeout", wall="landlock", note="the system allows no namespaces")
    monkeypatch.setattr(programs, "run_program", lambda source, limits: late)
    assert run_tests("def f(): pass", "assert f()", "f").note == "the program ended early (timeout)"


def test_the_program_of_an_answer_is_the_last_fence_that_defines_it() -> None:
    answer = "First\n```python\ndef f(): return 1\n```\nbetter\n```python\ndef f(): return 2\n```\nUse:\n```\nf()\n```"
    assert extract_program(answer, "f") == "def f(): return 2\n"
    assert extract_program("```\nprint(1)\n```", "f") == "print(1)\n"
    assert extract_program("def f(): return 3", "f") == "def f(): return 3"


@can_run
def test_each_domain_is_graded_in_its_own_way() -> None:
    bench = Bench(LIMITS)
    code = Problem("?", (), domain="code", entry_point="f", tests="assert f() == 1")
    number = Problem("?", (("1/2",), ("0.7",)))
    words = Problem("?", (("Oslo",),), domain="qa")

    async def levels() -> list[float]:
        asked = ((code, "```python\ndef f(): return 1\n```"), (number, "#### 0.5"), (words, "in Oslo"))
        return [(await grade(problem, answer, bench))[0] for problem, answer in asked]

    assert asyncio.run(levels()) == [1.0, 1.0, 0.4]
