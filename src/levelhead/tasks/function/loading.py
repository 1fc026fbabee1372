"""Finding reward functions, as ``file.py:name`` or a Python callable, and the texts that their files hold."""

from __future__ import annotations

import ast
import contextlib
import inspect
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from levelhead.errors import InputError
from levelhead.tasks.base import Task
from levelhead.usercode import helper_files, load_object

RewardFunction = Callable[..., Any]
"""TRL's signature: ``f(prompts, completions, completion_ids, **columns) -> list[float | None]``, sync or async."""

STANDARD = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""Keyword arguments that every reward function gets besides the columns."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward function, ready to be called.

    Attributes:
        name: Name of its part of a score, unique within the task.
        source: What to call it in an error: ``rewards.py:accuracy`` or the name.
        function: The callable.
        weight: Its share of the total.
        accepts: Keyword arguments it takes; ``None`` where it takes any (``**kwargs``).
    """

    name: str
    source: str
    function: RewardFunction
    weight: float
    accepts: frozenset[str] | None

    @property
    def is_async(self) -> bool:
        """Whether a call returns a coroutine: an ``async def``, a partial of one, an object whose call is one."""
        call = getattr(type(self.function), "__call__", None)  # noqa: B004 - the method itself is looked at
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(call)

    @property
    def file(self) -> str:
        """File that the function is written in; empty where that is not known."""
        inner = getattr(self.function, "func", self.function)
        with contextlib.suppress(ValueError):  # wrapped in itself
            inner = inspect.unwrap(inner)
        code = getattr(inner, "__code__", None) or getattr(getattr(inner, "__call__", None), "__code__", None)  # noqa: B004
        return str(getattr(code, "co_filename", ""))


def load_rewards(
    given: Sequence[str | RewardFunction], weights: Sequence[float] | None, columns: Collection[str], source: str
) -> list[Reward]:
    """Load, name and check reward functions.

    Args:
        given: ``file.py:name`` or callables.
        weights: One a function; 1 each unless given.
        columns: What the data offer as keyword arguments.
        source: What to call the data in an error.

    Raises:
        InputError: No function is given, a file or name is missing, a file cannot be imported, the weights do not
            match, or a function asks for a column that the data do not have.
    """
    if not given:
        raise InputError("tasks[].rewards is empty: name reward functions as file.py:name, or pass rewards=[...]")
    if weights is None:
        weights = [1.0] * len(given)
    if len(weights) != len(given):
        raise InputError(f"tasks[].reward_weights has {len(weights)} weights for {len(given)} reward functions")
    if not all(math.isfinite(weight) for weight in weights):
        raise InputError(f"tasks[].reward_weights must be finite numbers, not {list(weights)}")
    rewards: list[Reward] = []
    for entry, weight in zip(given, weights, strict=True):
        function: Any = entry
        if isinstance(entry, str):
            function = load_object(entry, "tasks[].rewards", "function", inspect.isfunction)
        if not callable(function) or inspect.isclass(function):
            raise InputError(f"{entry}: a reward must be a function or an object that can be called, not a class")
        if any(reward.function is function for reward in rewards):
            raise InputError(f"tasks[].rewards names {entry} twice; give it a larger weight instead")
        name = _free_name(_name_of(function), [reward.name for reward in rewards])
        label = entry if isinstance(entry, str) else name
        rewards.append(Reward(name, label, function, float(weight), _accepts(function, label, columns, source)))
    return rewards


def _name_of(function: RewardFunction) -> str:
    inner = getattr(function, "func", function)  # functools.partial has no name of its own
    name = getattr(function, "__name__", None) or getattr(inner, "__name__", None) or type(function).__name__
    return "reward" if name == "<lambda>" else str(name)


def _free_name(name: str, taken: Collection[str]) -> str:
    choices = (name if n == 1 else f"{name}_{n}" for n in count(1))
    return next(choice for choice in choices if choice not in taken)


def _accepts(function: RewardFunction, label: str, columns: Collection[str], source: str) -> frozenset[str] | None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise InputError(f"{label}: the argument {parameter.name!r} is positional-only; rewards get keywords")
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if named and parameter.default is parameter.empty and parameter.name not in (*STANDARD, *columns):
            raise InputError(
                f"{label} asks for {parameter.name!r}, and {source} has no such column; "
                f"the columns are: {', '.join(columns) or 'none'}"
            )
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)


def texts_of_rewards(task: Task) -> Iterator[list[str]]:
    r"""Yield the text constants of each file of a task's reward functions and of their helpers, docstrings left out.

    Backslashes of regular expressions are taken out (``<\|end\|>`` reads ``<|end|>``).  Nothing is run.
    """
    functions = [getattr(reward.function, "func", reward.function) for reward in getattr(task, "rewards", ())]
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
