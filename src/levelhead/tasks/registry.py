"""From a recipe's section to its task; each kind's module is imported only when that kind is asked for.

A task of the user's own comes from a file; its settings are checked against its constructor.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any, get_type_hints

from pydantic import ConfigDict, create_model

from levelhead.errors import InputError
from levelhead.installation import install_command
from levelhead.objective.registry import build
from levelhead.recipe.recipe import Recipe
from levelhead.recipe.task import TaskSection
from levelhead.recipe.tasks import CustomTask, Function
from levelhead.section import Section
from levelhead.tasks.base import SingleTurnTask, Task
from levelhead.usercode import load_class


class _Settings(Section):
    """The keyword arguments of a constructor, with their annotations as types."""

    model_config = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=(), use_attribute_docstrings=False)


def make_custom(section: CustomTask) -> Task:
    """Build the task that a section of kind ``custom`` asks for.

    Its constructor is also given ``name``, ``eval_fraction`` and ``limit``, where it has arguments of these names.

    Args:
        section: Names the class, and the arguments of its constructor.

    Raises:
        InputError: There is no such class, an argument does not fit it, it is no whole task, or making it raises.
    """
    name, path = section.title, section.path
    if path is None:
        raise InputError(
            f"tasks[].path: task {name!r} was given in Python: give it again, as in train(recipe, tasks=[...]), "
            "or name its class here as file.py:Name"
        )
    variant: type[Any] = load_class(path, object, "tasks[].path")
    if lacking := sorted(getattr(variant, "__abstractmethods__", ())):
        raise InputError(f"{path}: a task needs the method {lacking[0]!r} (tasks[].path)")
    settings = _settings(variant, path)
    keys = {"name": name, "eval_fraction": section.eval_fraction, "limit": section.limit}
    shared = {key: value for key, value in keys.items() if key in settings.model_fields and value is not None}
    try:
        arguments = build(settings, shared | section.settings, path, "tasks[].settings")
    except ValueError as error:
        raise InputError(str(error)) from None
    try:
        task = variant(**{key: getattr(arguments, key) for key in settings.model_fields})
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{path}: making it raised {type(error).__name__}: {error} (task {name!r})") from error
    check_task(task, path)
    if task.name != name:
        says = f"it calls itself {task.name!r}, and the recipe {name!r}"
        raise InputError(f"{path}: {says}; take the argument name, or set tasks[].name")
    whole: Task = task
    return whole


def check_task(task: Any, label: str) -> None:
    """Refuse what is no whole task; ``label`` names it in the error.

    Raises:
        InputError: Its class derives from no task.
    """
    if not isinstance(task, Task):
        raise InputError(
            f"{label}: a task derives from levelhead.tasks.base.Task, or from its SingleTurnTask, which asks for less"
        )


def _settings(variant: type[Any], path: str) -> type[Section]:
    """The constructor's arguments as a section."""
    try:
        hints = get_type_hints(variant.__init__, include_extras=True)
        parameters = inspect.signature(variant).parameters.values()
        fields: dict[str, Any] = {
            p.name: (hints.get(p.name, Any), ... if p.default is p.empty else p.default)
            for p in parameters
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and not p.name.startswith("_")
        }
        return create_model(variant.__name__, __base__=_Settings, **fields)
    except Exception as error:
        raise InputError(f"{path}: its arguments cannot be read: {type(error).__name__}: {error}") from error


_EXTRAS = {
    "lark": "workflow",
    "sympy": "workflow",
    "httpx2": "judge",
    "playwright": "browser",
    "verifiers": "verifiers",
}
"""Packages that only some kinds of task need, and the extra that brings them."""


def make_task(section: TaskSection) -> Task:
    """Build the task that a recipe's section describes, with its judges.

    Raises:
        InputError: The task's data are missing or malformed, or a package that it needs is not installed.
        ValueError: The section names no task.
    """
    return with_judges(make_rules(section), section)


def with_judges(task: Task, section: TaskSection) -> Task:
    """Give a task the judges that its section names, if any, and return it.

    Raises:
        InputError: The task has no single answers; a judge's cache, function or calibration cannot be used, or a
            package is not installed.
    """
    judge = getattr(section, "judge", None) or getattr(section, "judges", None)
    if judge is None:
        return task
    if not isinstance(task, SingleTurnTask):
        raise InputError(f"tasks[].judges: {task.name} is no task of single answers")
    with _packages(section.kind):
        task.grader = import_module("levelhead.tasks.judges").JudgeGrader(task, section.kind, judge)
    return task


def function_tasks(recipe: Recipe, data: Any, rewards: Any, eval_data: Any = None, tools: Any = ()) -> dict[str, Any]:
    """Build the ``function`` task of a recipe around data, rewards and tools of Python."""
    if data is None and eval_data is None and rewards is None and not tools:
        return {}
    from levelhead.tasks.function import FunctionTask

    sections = [section for section in recipe.tasks if isinstance(section, Function)]
    if len(sections) != 1:
        raise InputError(f"train(): data and rewards need exactly one task of kind function, found {len(sections)}")
    (section,) = sections
    functions = [rewards] if callable(rewards) else rewards
    task = with_judges(FunctionTask(section, data=data, eval_data=eval_data, rewards=functions, tools=tools), section)
    return {section.title: task}


def make_rules(section: TaskSection) -> Task:
    """Build the task that a recipe's section describes, without its judges.

    Raises:
        InputError: The task's data are missing or malformed, or a package that it needs is not installed.
        ValueError: The section names no task.
    """
    if isinstance(section, CustomTask):
        return make_custom(section)
    module, _, name = section.task.partition(":")
    if not name:
        raise ValueError(f"the section {type(section).__name__} names no task")
    with _packages(section.kind):
        task: Task = getattr(import_module(module), name)(section)
    return task


@contextlib.contextmanager
def _packages(kind: str) -> Iterator[None]:
    """Name the extra that brings a package which is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        raise InputError(
            f"tasks[].kind {kind!r} needs {error.name}, which is not installed; "
            f"{install_command(kind if kind == 'workflow' else _EXTRAS[error.name])}"
        ) from error
