"""From a recipe's section to its task; each kind's module is imported only when that kind is asked for."""

from __future__ import annotations

from importlib import import_module

from levelhead.errors import InputError
from levelhead.installation import install_command
from levelhead.recipe.tasks import CustomTask, TaskSection
from levelhead.tasks.base import Task
from levelhead.tasks.custom import make_custom

_TASKS = {
    "fairness": ("levelhead.tasks.fairness", "FairnessTask"),
    "faithfulness": ("levelhead.tasks.faithfulness", "FaithfulnessTask"),
    "math": ("levelhead.tasks.math", "MathTask"),
    "function": ("levelhead.tasks.function", "FunctionTask"),
    "primer": ("levelhead.tasks.primer", "PrimerTask"),
    "workflow": ("levelhead.tasks.workflow.task", "WorkflowTask"),
    "browser": ("levelhead.tasks.browser", "BrowserTask"),
    "openenv": ("levelhead.tasks.openenv", "OpenEnvTask"),
    "browsergym": ("levelhead.tasks.browsergym", "BrowserGymTask"),
}

_EXTRAS = {"lark": "workflow", "sympy": "workflow", "httpx2": "judge", "playwright": "browser"}
"""Packages that only some kinds of task need, and the extra that brings them."""


def make_task(section: TaskSection) -> Task:
    """Build the task that a recipe's section describes.

    Raises:
        InputError: The task's data are missing or malformed, or a package that it needs is not installed.
        ValueError: No task of the section's kind is known.
    """
    if isinstance(section, CustomTask):
        return make_custom(section)
    kind = str(getattr(section, "kind", ""))
    if kind not in _TASKS:
        raise ValueError(f"no task of kind {kind!r}; the kinds are {', '.join(_TASKS)}")
    module, name = _TASKS[kind]
    try:
        task: Task = getattr(import_module(module), name)(section)
        judge = getattr(section, "judge", None)
        if judge is not None:
            task = import_module("levelhead.tasks.judge").JudgedTask(task, kind, judge)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        raise InputError(
            f"tasks[].kind {kind!r} needs {error.name}, which is not installed; "
            f"{install_command(kind if kind == 'workflow' else _EXTRAS[error.name])}"
        ) from error
    return task
