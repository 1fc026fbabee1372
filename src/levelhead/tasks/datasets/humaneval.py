"""HumanEval: Python functions to be written from a signature and its docstring (Chen et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterator

from levelhead.tasks.datasets.base import Dataset, Example
from levelhead.tasks.datasets.checkers.program import check_program
from levelhead.tasks.files import Row


def parse(row: Row) -> Iterator[Example]:
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


DATASET = Dataset(
    name="humaneval",
    title="HumanEval (Chen et al. 2021, arXiv:2107.03374)",
    domain="code",
    origin="https://github.com/openai/human-eval, data/HumanEval.jsonl.gz",
    licence="MIT",
    schemas=(("task_id", "prompt", "canonical_solution", "test", "entry_point"),),
    parse=parse,
    check=check_program,
    instruction="Give the whole function in one block of ```python.",
    hub="openai/openai_humaneval",
    hub_split="test",
)
