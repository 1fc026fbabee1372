"""A task of the user's own: its class comes from a file, its settings are checked against its constructor."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

from pydantic import ConfigDict, create_model

from levelhead.errors import InputError
from levelhead.objective.registry import build
from levelhead.recipe.tasks import CustomTask
from levelhead.section import Section
from levelhead.tasks.base import Task
from levelhead.usercode import load_class


class _Settings(Section):
    """The keyword arguments of a constructor, with their annotations as types."""

    model_config = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=())


def make_custom(section: CustomTask) -> Task:
    """Build the task that a section of kind ``custom`` asks for.

    Its constructor is also given ``name``, ``eval_fraction`` and ``limit``, where it has arguments of these names.

    Args:
        section: Names the class, and the arguments of its constructor.

    Raises:
        InputError: There is no such class, an argument does not fit it, it is no whole task, or making it raises.
    """
    name, path = section.name or section.kind, section.path
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
