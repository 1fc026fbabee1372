"""MBPP: short Python functions to be written from a sentence and its tests (Austin et al. 2021)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from levelhead.tasks.datasets.base import Dataset, Example
from levelhead.tasks.datasets.checkers.program import check_program
from levelhead.tasks.files import Row

_DEFINED = re.compile(r"^[ \t]*def[ \t]+(\w+)[ \t]*\(", re.MULTILINE)
_CALLED = re.compile(r"\b(\w+)[ \t]*\(")


def parse(row: Row) -> Iterator[Example]:
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


DATASET = Dataset(
    name="mbpp",
    title="MBPP (Austin et al. 2021, arXiv:2108.07732)",
    domain="code",
    origin="https://github.com/google-research/google-research/tree/master/mbpp, mbpp.jsonl and sanitized-mbpp.json",
    licence="CC BY 4.0",
    schemas=(("task_id", "text", "code", "test_list"), ("task_id", "prompt", "code", "test_list")),
    parse=parse,
    check=check_program,
    instruction="Give the whole function in one block of ```python.",
    hub="google-research-datasets/mbpp",
    hub_config="full",
)
