"""Files of the user's own that a recipe names: importing them, and taking a function or class out of them.

A file is imported once in a process, however many keys name it, and again only after it, or a module that it imports
from beside itself, has changed.  Its absolute imports are looked for beside it first, as in a script, and then in the
folders that it puts on ``sys.path``: two tasks may each have a ``utils.py`` of their own.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from levelhead.errors import InputError
from levelhead.message import Message

T = TypeVar("T")
NO_FILE = Message("{file}: no such file ({key}, seen from {folder})", "{file}：没有这个文件（{key}，相对于 {folder}）")


def load_object(entry: str, key: str, what: str, kind: Callable[[Any], bool]) -> Any:
    """Import the object that ``file.py:name`` names.

    Args:
        entry: ``file.py:name``; the file is seen from the current folder.
        key: Of the recipe, for errors.
        what: What is looked for, for errors: ``function`` or ``class``.
        kind: Whether a value is one; the file's own are listed where the name is missing.

    Raises:
        InputError: The entry reads otherwise, the file or the name is missing, or importing the file raises.
    """
    file, _, name = entry.rpartition(":")
    if not file.endswith(".py") or not name:
        raise InputError(f"{key}: {entry!r} must read file.py:name")
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise InputError(NO_FILE(file=file, key=key, folder=Path.cwd()))
    try:
        with _lock:
            module = _import(path, path.parent)
    except (Exception, SystemExit) as error:
        raise InputError(f"{file}: importing it raised {type(error).__name__}: {error}") from error
    _refuse_ambiguous(path)
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
    value = load_object(entry, key, "class", inspect.isclass)
    if not (inspect.isclass(value) and issubclass(value, base)):
        raise InputError(f"{entry}: must be a class that derives from {base.__module__}.{base.__name__} ({key})")
    return value


def helper_files(path: Path) -> list[Path]:
    """Return the files beside a Python file that importing it runs, directly or through each other, without running it.

    Imports inside functions count, and ``importlib.import_module`` of a literal name; of a package, all its files.
    A file that is no Python imports nothing.
    """
    root = path.resolve().parent
    reached: dict[Path, None] = {}
    waiting = [path.resolve()]
    while waiting:
        file = waiting.pop()
        roots = [root, *file.parents[1:4]] if _source(file).find(b"sys.path") >= 0 else [root]
        for name, _ in _imported_names(file):
            beside = _beside(roots, name)
            for file in [] if beside is None else _whole(beside):
                if file not in reached and file != path.resolve():
                    reached[file] = None
                    waiting.append(file)
    return sorted(reached)


def _refuse_ambiguous(path: Path) -> None:
    """Refuse a file that imports a helper by ``importlib.import_module``, where that would return another file's."""
    for file in (path, *helper_files(path)):
        for name, dynamic in _imported_names(file):
            helper = _beside([path.parent], name) if dynamic else None
            if helper is not None and _module_name(helper) != name:
                raise InputError(
                    f"{file}: it imports {name!r} by importlib, which finds another file than {helper}: "
                    f"write 'import {name}', or rename one of the files"
                )


@dataclass(slots=True)
class _Imported:
    """A file that has been imported, as it stood then."""

    module: ModuleType
    stamp: list[tuple[int, int]]
    helpers: set[Path] = field(default_factory=set)
    path_before: frozenset[str] = field(default_factory=lambda: frozenset(sys.path))
    path_after: Sequence[str] = ()

    def folders(self, file: Path) -> list[Path]:
        """Folders that it has put on the path; those above a file of it, whoever else has put them there too."""
        entries = self.path_after or sys.path
        own = [entry for entry in entries if entry not in self.path_before]
        above = [entry for entry in entries if entry in _added and Path(entry) in file.parents]
        return [Path(entry) for entry in (*own, *above)]


_imported: dict[Path, _Imported] = {}
_added: set[str] = set()
"""What files of the user's have put on ``sys.path``."""
_lock = threading.RLock()


def _import(path: Path, root: Path) -> ModuleType:
    """Return the module of a file or of a package's ``__init__.py``, imported if it has not been or has changed."""
    loaded = _imported.get(path)
    if loaded is not None and not _changed(path, set()):
        return loaded.module
    if str(root) not in sys.path:
        sys.path.append(str(root))  # last, so that none of the user's files hides a package from the others
        _added.add(str(root))
    name = _module_name(path)
    spec = _own_spec(name, path, root)
    module = importlib.util.module_from_spec(spec)
    _imported[path] = loaded = _Imported(module, _stamp(path))
    for inside in [loaded for loaded in sys.modules if loaded.startswith(f"{name}.")]:
        del sys.modules[inside]
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)  # type: ignore[union-attr]
    except BaseException:
        sys.modules.pop(name, None)
        _imported.pop(path, None)
        raise
    loaded.path_after = list(sys.path)
    _added.update(set(sys.path) - loaded.path_before)
    return module


def _stamp(path: Path) -> list[tuple[int, int]]:
    """Times and sizes of a file, or of all files of a package."""
    statuses = [file.stat() for file in _whole(path) if file.is_file()]
    return [(status.st_mtime_ns, status.st_size) for status in statuses]


def _changed(path: Path, seen: set[Path]) -> bool:
    """Whether an imported file, or a helper of it, is another one than when it was imported."""
    seen.add(path)
    loaded = _imported.get(path)
    if loaded is None or not _whole(path) or _stamp(path) != loaded.stamp:
        return True
    return any(_changed(helper, seen) for helper in loaded.helpers - seen)


def _module_name(path: Path) -> str:
    """The name that ``import`` knows the file by, which other processes unpickle by, or else one of its own."""
    name = path.parent.name if path.stem == "__init__" else path.stem
    loaded, own = sys.modules.get(name), _imported.get(path)
    if name.isidentifier() and (loaded is None or (own is not None and loaded is own.module)):
        importlib.invalidate_caches()
        spec = PathFinder.find_spec(name)
        places = (
            [] if spec is None else [spec.origin or f"{next(iter(spec.submodule_search_locations or ()))}/__init__.py"]
        )
        if any(Path(place).resolve() == path for place in places):
            return name
    return f"{name}_{sha256(str(path).encode()).hexdigest()[:12]}"


class _OwnLoader(SourceFileLoader):
    """Loads a file of the user's whose absolute imports are looked for beside it first."""

    def __init__(self, name: str, path: str, root: Path, top: Path) -> None:
        super().__init__(name, path)
        self._root, self._top = root, top

    def get_code(self, fullname: str) -> Any:
        """Compile the file; a compiled one of the same second may be of an older version."""
        path = self.get_filename(fullname)
        return self.source_to_code(_source(Path(path)), path)

    def exec_module(self, module: ModuleType) -> None:
        """Run the file with an ``__import__`` of its own."""
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._import}
        super().exec_module(module)

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002 - as those of the builtin
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top, *rest = name.split(".")
        loaded = _imported[self._top]
        file = _beside([self._root, *loaded.folders(Path(self.path))], top) if level == 0 else None
        if file is not None and str(file) != self.path:  # a file may have the name of a package that it imports
            with _lock:
                loaded.helpers.add(file)
                root = file.parents[1] if file.name == "__init__.py" else file.parent
                name = ".".join([_import(file, root).__name__, *rest])
        return builtins.__import__(name, globals, locals, fromlist or (), level)


class _OwnFinder:
    """Finds the modules inside packages of the user's, and has them loaded as their packages are."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        package = sys.modules.get(name.rpartition(".")[0])
        loader = getattr(getattr(package, "__spec__", None), "loader", None)
        if not isinstance(loader, _OwnLoader):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or not (spec.origin is None or isinstance(spec.loader, SourceFileLoader)):
            return spec
        file = spec.origin or Path(next(iter(spec.submodule_search_locations or ())), "__init__.py")
        return _own_spec(name, Path(file), loader._root, loader._top)


sys.meta_path.insert(0, _OwnFinder)


def _own_spec(name: str, path: Path, root: Path, top: Path | None = None) -> ModuleSpec:
    loader = _OwnLoader(name, str(path), root, top or path)
    inside = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, path, loader=loader, submodule_search_locations=inside)
    assert spec is not None  # noqa: S101 - it has a loader
    return spec


def _beside(roots: Sequence[Path], name: str) -> Path | None:
    """The file of a module or package in the first folder that has it; ``None`` where none has, or it is built in.

    A folder with Python files is a package without its ``__init__.py``, unless one of that name is installed.
    """
    if name in sys.builtin_module_names:
        return None
    for root in roots:
        file = next((file for file in (root / name / "__init__.py", root / f"{name}.py") if file.is_file()), None)
        if file is None and any((root / name).rglob("*.py")) and not _installed(name):
            file = root / name / "__init__.py"
        if file is not None:
            return file
    return None


def _installed(name: str) -> bool:
    """Whether a regular module of a name is found outside the folders of the user's files."""
    spec = PathFinder.find_spec(name, [entry for entry in sys.path if entry not in _added])
    return spec is not None and spec.origin is not None


def _source(path: Path) -> bytes:
    """What a file holds; nothing where there is none."""
    return path.read_bytes() if path.is_file() else b""


def _whole(path: Path) -> list[Path]:
    """A file, or all files of the package whose ``__init__.py`` it is."""
    return sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]


def _imported_names(path: Path) -> Iterator[tuple[str, bool]]:
    """First parts of the names that a file imports absolutely, each with whether a function of importlib does it."""
    try:
        tree = ast.parse(_source(path))
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0], False
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__"):
                yield str(node.args[0].value).partition(".")[0], called == "import_module"
