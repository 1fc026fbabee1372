"""Programs that are run against tests in the sandbox: HumanEval (Chen et al. 2021) and MBPP (Austin et al. 2021)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from levelhead.recipe.workflow import SandboxLimits
from levelhead.tasks.datasets.base import Dataset, Example, Verdict
from levelhead.tasks.files import Row
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


def parse_humaneval(row: Row) -> Iterator[Example]:
    """Read ``task_id``, ``prompt``, ``canonical_solution``, ``test`` (a ``check(candidate)``) and ``entry_point``.

    Raises:
        InputError: A field is missing, no text or empty, or the function that it names is not in the prompt.
    """
    key, prompt, body = row.text("task_id"), row.text("prompt"), row.text("canonical_solution")
    tests, entry = row.text("test"), row.text("entry_point")
    if not entry.isidentifier() or f"def {entry}(" not in prompt:
        raise row.error(f"the field 'entry_point' must name a function of 'prompt', not {entry[:40]!r}")
    if "assert" not in tests:
        raise row.error("the field 'test' asserts nothing")
    question = f"Complete this Python function.\n```python\n{prompt.strip()}\n```"
    solution = f"```python\n{prompt}{body.rstrip()}\n```"
    yield Example(question, ((prompt + body,),), solution, key, entry_point=entry, tests=tests, preamble=prompt)


HUMANEVAL = Dataset(
    name="humaneval",
    title="HumanEval (Chen et al. 2021, arXiv:2107.03374)",
    domain="code",
    origin="https://github.com/openai/human-eval, data/HumanEval.jsonl.gz",
    licence="MIT",
    schemas=(("task_id", "prompt", "canonical_solution", "test", "entry_point"),),
    parse=parse_humaneval,
    check=check_program,
    instruction="Give the whole function in one block of ```python.",
    hub="openai/openai_humaneval",
    hub_split="test",
)


_DEFINED = re.compile(r"^[ \t]*def[ \t]+(\w+)[ \t]*\(", re.MULTILINE)
_CALLED = re.compile(r"\b(\w+)[ \t]*\(")


def parse_mbpp(row: Row) -> Iterator[Example]:
    """Read a row of ``mbpp.jsonl`` (``text``) or of ``sanitized-mbpp.json`` (``prompt``, ``test_imports``).

    Both have ``task_id``, ``code`` and ``test_list``.  The function that is asked for is the first one of ``code`` that
    the tests call; the policy sees the tests, as in the paper.

    Raises:
        InputError: A field is missing or of another type, or the tests call no function of ``code``.
    """
    key = str(row.integer("task_id", 0, 10**9))
    text = row.text("text" if "text" in row.values else "prompt").strip()
    code = row.text("code").replace("\r\n", "\n")
    tests = row.texts("test_list")
    if not tests or not all("assert" in test for test in tests):
        raise row.error("the field 'test_list' must hold assertions")
    defined = _DEFINED.findall(code)
    entry = next((name for test in tests for name in _CALLED.findall(test) if name in defined), None)
    if entry is None:
        raise row.error(f"the field 'test_list' calls no function of 'code' ({', '.join(defined)[:60] or 'none'})")
    setup = row.texts("test_imports") if row.values.get("test_imports") else []
    if row.values.get("test_setup_code"):
        setup.append(row.text("test_setup_code", empty=True))
    shown = "\n".join(tests)
    yield Example(
        f"{text}\nYour code should pass these tests:\n```python\n{shown}\n```",
        ((code,),),
        f"```python\n{code.strip()}\n```",
        key,
        difficulty="easy",
        entry_point=entry,
        tests="\n".join([*setup, *tests]),
    )


MBPP = Dataset(
    name="mbpp",
    title="MBPP (Austin et al. 2021, arXiv:2108.07732)",
    domain="code",
    origin="https://github.com/google-research/google-research/tree/master/mbpp, mbpp.jsonl and sanitized-mbpp.json",
    licence="CC BY 4.0",
    schemas=(("task_id", "text", "code", "test_list"), ("task_id", "prompt", "code", "test_list")),
    parse=parse_mbpp,
    check=check_program,
    instruction="Give the whole function in one block of ```python.",
    hub="google-research-datasets/mbpp",
    hub_config="full",
)
