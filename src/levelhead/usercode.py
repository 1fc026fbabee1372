"""Files of the user's own that a recipe names: importing them, and taking a function or class out of them."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, MutableMapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from levelhead.errors import InputError

T = TypeVar("T")
_MODULES: dict[tuple[Path, int], ModuleType] = {}
"""Files that classes were taken out of, as they stood at a time; one that is changed is imported again."""


def load_object(
    entry: str, key: str, what: str, kind: Callable[[Any], bool], modules: MutableMapping[Path, ModuleType]
) -> Any:
    """Return what ``file.py:name`` names.

    Args:
        entry: ``file.py:name``; the file is seen from the current folder.
        key: Of the recipe, for errors.
        what: What is looked for, for errors: ``function`` or ``class``.
        kind: Whether a value is one; the file's own are listed where the name is missing.
        modules: Files that have been imported already; this one is added.

    Raises:
        InputError: The entry reads otherwise, the file or the name is missing, or importing the file raises.
    """
    file, _, name = entry.rpartition(":")
    if not file.endswith(".py") or not name:
        raise InputError(f"{key}: {entry!r} must read file.py:name")
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise InputError(f"{file}: no such file ({key}, seen from {Path.cwd()})")
    module = modules.get(path) or modules.setdefault(path, _import(path, file))
    value = getattr(module, name, None)
    if value is None:
        defined = [n for n, v in vars(module).items() if kind(v) and v.__module__ == module.__name__]
        raise InputError(f"{file}: there is no {what} {name!r}; it defines: {', '.join(defined) or 'none'}")
    return value


def load_class(entry: str, base: type[T], key: str) -> type[T]:
    """Return the class that ``file.py:Name`` names.

    Args:
        entry: As it stands in the recipe.
        base: What it must derive from.
        key: Of the recipe, for errors.

    Raises:
        InputError: As :func:`load_object`, or it is no such class.
    """
    path = Path(entry.rpartition(":")[0]).expanduser().resolve()
    stamp = (path, path.stat().st_mtime_ns) if path.is_file() else None
    modules = {path: _MODULES[stamp]} if stamp in _MODULES else {}
    value = load_object(entry, key, "class", inspect.isclass, modules)
    if stamp is not None:
        _MODULES[stamp] = modules[path]
    if not (inspect.isclass(value) and issubclass(value, base)):
        raise InputError(f"{entry}: must be a class that derives from {base.__module__}.{base.__name__} ({key})")
    return value


def _import(path: Path, shown: str) -> ModuleType:
    name = f"levelhead_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{shown}: cannot be imported as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # Last, so that the user's helper modules are found and none of them hides an installed package.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        raise InputError(f"{shown}: importing it raised {type(error).__name__}: {error}") from error
    return module
