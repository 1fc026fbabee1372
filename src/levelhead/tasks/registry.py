"""From a recipe's section to its task; each kind's module is imported only when that kind is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module

from levelhead.errors import InputError
from levelhead.installation import install_command
from levelhead.recipe.task import TaskSection
from levelhead.recipe.tasks import CustomTask
from levelhead.tasks.base import SingleTurnTask, Task
from levelhead.tasks.custom import make_custom

_EXTRAS = {"lark": "workflow", "sympy": "workflow", "httpx2": "judge", "playwright": "browser"}
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
    kind = str(getattr(section, "kind", ""))
    with _packages(kind):
        task.grader = import_module("levelhead.tasks.judges").JudgeGrader(task, kind, judge)
    return task


def make_rules(section: TaskSection) -> Task:
    """Build the task that a recipe's section describes, without its judges.

    Raises:
        InputError: The task's data are missing or malformed, or a package that it needs is not installed.
        ValueError: The section names no task.
    """
    if isinstance(section, CustomTask):
        return make_custom(section)
    kind = str(getattr(section, "kind", ""))
    module, _, name = section.task.partition(":")
    if not name:
        raise ValueError(f"the section {type(section).__name__} names no task")
    with _packages(kind):
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
