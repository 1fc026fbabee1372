"""From a recipe's section to its task; each kind's module is imported only when that kind is asked for."""

from __future__ import annotations

from importlib import import_module

from levelhead.recipe.tasks import TaskSection
from levelhead.tasks.base import Task

_TASKS = {
    "fairness": ("levelhead.tasks.fairness", "FairnessTask"),
    "faithfulness": ("levelhead.tasks.faithfulness", "FaithfulnessTask"),
    "math": ("levelhead.tasks.math", "MathTask"),
    "function": ("levelhead.tasks.function", "FunctionTask"),
    "workflow": ("levelhead.tasks.workflow", "WorkflowTask"),
    "browser": ("levelhead.tasks.browser", "BrowserTask"),
}


def make_task(section: TaskSection) -> Task:
    """Build the task that a recipe's section describes.

    Raises:
        InputError: The task's data are missing or malformed.
        ValueError: No task of the section's kind is known.
    """
    kind = str(getattr(section, "kind", ""))
    if kind not in _TASKS:
        raise ValueError(f"no task of kind {kind!r}; the kinds are {', '.join(_TASKS)}")
    module, name = _TASKS[kind]
    task: Task = getattr(import_module(module), name)(section)
    return task
