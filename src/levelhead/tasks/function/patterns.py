"""The texts that reward functions hold: patterns, tags, words, as they stand in their files."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from levelhead.tasks.base import Task
from levelhead.usercode import helper_files


def texts_of_rewards(task: Task) -> Iterator[list[str]]:
    r"""Yield the text constants of each file of a task's reward functions and of their helpers, docstrings left out.

    Backslashes of regular expressions are taken out (``<\|end\|>`` reads ``<|end|>``).  Nothing is run.
    """
    rules = getattr(task, "task", task)  # behind its judges
    functions = [getattr(reward.function, "func", reward.function) for reward in getattr(rules, "rewards", ())]
    own = [Path(file) for file in map(_file_of, functions) if file]
    for path in dict.fromkeys(path for file in own for path in (file, *helper_files(file))):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError, RecursionError):
            continue
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        constants = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        ]
        yield [re.sub(r"\\(.)", r"\1", text) for text in constants]


def _file_of(function: Any) -> str | None:
    try:
        return inspect.getsourcefile(function if hasattr(function, "__code__") else type(function))
    except TypeError:
        return None
