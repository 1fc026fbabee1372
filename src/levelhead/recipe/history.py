"""What a run was asked for over its sittings: its recipe, the ones accepted later, and the files that they name."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from levelhead.documents import DocumentError, read_text
from levelhead.documents.yaml_text import load_yaml
from levelhead.errors import InputError, first_line
from levelhead.recipe.load import plain
from levelhead.recipe.recipe import Recipe
from levelhead.usercode import helper_files

RECIPE = "recipe.yaml"
"""Name of the recipe that began a run; those accepted later are ``recipe-2.yaml`` and so on."""
INPUTS = "inputs.json"
"""Name of the fingerprints of the files that the recipe names; later ones are ``inputs-2.json`` and so on."""
CONTENTS = "contents"
"""What is said to have changed where a file's name is the same and its contents are not."""

_NAMES_FILES = frozenset({"path", "rewards", "chat_template"})
"""Keys of a recipe whose values name files that are read and never written."""
_DATA = frozenset({".json", ".jsonl", ".csv", ".parquet"})
"""Endings of the files of a folder that are read as data."""
_CODE = re.compile(r"^(?P<file>.+\.py):\w+$")


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()
"""Stands for the value of a key that is not there."""


@dataclass(frozen=True, slots=True)
class Change:
    """One key of a recipe that differs.

    Attributes:
        key: Dotted, list items by index.
        before: Its value then.
        after: Its value now.
        contents: Whether it names a file whose contents differ, while the name may be the same.
    """

    key: str
    before: Any
    after: Any
    contents: bool = False

    def __str__(self) -> str:
        if self.contents:
            return f"{self.key} ({CONTENTS}: {_shown(self.before, 12)} -> {_shown(self.after, 12)})"
        return f"{self.key} ({_shown(self.before)} -> {_shown(self.after)})"


def in_force(folder: Path) -> dict[str, Any]:
    """Return the recipe that a run goes by now, as plain data; empty where none can be read."""
    try:
        value = load_yaml(read_text(folder / (History(folder).newest or RECIPE)))
    except (DocumentError, InputError, OSError):
        return {}
    return {str(key): inner for key, inner in value.items()} if isinstance(value, dict) else {}


def compare(before: Any, after: Any, key: str = "") -> list[Change]:
    """Return what differs between two recipes as plain data, key by key."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys = dict.fromkeys([*after, *before])
        parts = [(str(name), before.get(name, ABSENT), after.get(name, ABSENT)) for name in keys]
    elif _listed(before) and _listed(after):
        count = max(len(before), len(after))
        pairs = ((_at(before, i), _at(after, i)) for i in range(count))
        parts = [(str(i), one, other) for i, (one, other) in enumerate(pairs)]
    else:
        same = type(before) is type(after) and before == after
        return [] if same else [Change(key, before, after)]
    return [change for name, one, other in parts for change in compare(one, other, f"{key}.{name}" if key else name)]


def fingerprints(recipe: Recipe) -> dict[str, str]:
    """Return the SHA-256 sums of the files that a recipe names, by dotted key; of a folder, over its data files.

    Names that are no file or folder here (a data set of the hub) have none.  A Python file that another one imports
    from beside it has the key of that one and its own name: ``tasks.0.rewards.0.utils.py``.
    """
    sums = {}
    for key, path in _files(plain(recipe)):
        sums[key] = _digest(path)
        for helper in helper_files(path) if path.suffix == ".py" else ():
            sums[f"{key}.{helper.relative_to(path.resolve().parent).as_posix()}"] = _digest(helper)
    return sums


class History:
    """The recipes and fingerprints in a run's folder.

    Args:
        folder: Of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def newest(self) -> str | None:
        """File name of the recipe in force; ``None`` in a folder that has none."""
        return _newest(self.folder, RECIPE)

    def changes(self, name: str, recipe: Recipe) -> list[Change]:
        """Return what differs between a recipe of the run and another one: keys, and contents of files.

        Args:
            name: File name of the run's recipe.
            recipe: The other one.

        Raises:
            InputError: The file cannot be read.
        """
        differences = compare(self._plain(name), json.loads(json.dumps(plain(recipe))))
        renamed = {change.key for change in differences}
        before, now = self._inputs(name), fingerprints(recipe)
        keys = [key for key in now if key in before and before[key] != now[key] and key not in renamed]
        return [*differences, *(Change(key, before[key], now[key], contents=True) for key in keys)]

    def next_names(self) -> tuple[str, str]:
        """File names of the next recipe and the fingerprints of its files."""
        newest = self.newest
        if newest is None:
            return RECIPE, INPUTS
        number = _number(newest) + 1
        return f"recipe-{number}.yaml", f"inputs-{number}.json"

    def _plain(self, name: str) -> Any:
        """A recipe as plain data, with defaults for keys that are younger than it."""
        path = self.folder / name
        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            why = f"cannot be read, so that nothing can be compared with it: {first_line(error)}"
            raise InputError(f"{path}: {why}") from None
        try:
            return json.loads(json.dumps(plain(Recipe.model_validate(data))))
        except (ValidationError, TypeError):
            return data  # written by a version whose keys were others: they are what differs

    def _inputs(self, name: str) -> dict[str, str]:
        path = self.folder / name.replace("recipe", "inputs").replace(".yaml", ".json")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}  # of before there were any
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read: {error}") from None
        return {str(key): str(value) for key, value in content.items()} if isinstance(content, dict) else {}


def _newest(folder: Path, name: str) -> str | None:
    stem, _, suffix = name.partition(".")
    names = [path.name for path in folder.glob(f"{stem}*.{suffix}") if _number(path.name)]
    return max(names, key=_number, default=None)


def _number(name: str) -> int:
    """1 for ``recipe.yaml``, 2 for ``recipe-2.yaml``; 0 for other files."""
    match = re.fullmatch(r"recipe(?:-([1-9][0-9]*))?\.yaml", name)
    return 0 if match is None else int(match[1] or 1)


def _listed(value: Any) -> bool:
    """Whether a value is a list that is compared item by item: of sections or of texts."""
    return isinstance(value, list) and any(isinstance(item, Mapping | str) for item in value)


def _at(items: Sequence[Any], index: int) -> Any:
    return items[index] if index < len(items) else ABSENT


def _shown(value: Any, most: int = 40) -> str:
    text = str(value) if isinstance(value, _Absent) else json.dumps(value, ensure_ascii=False)
    text = text.strip('"')
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _files(node: Any, key: str = "", named: bool = False) -> Iterator[tuple[str, Path]]:
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from _files(value, f"{key}.{name}" if key else str(name), str(name) in _NAMES_FILES)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _files(value, f"{key}.{index}", named)
    elif named and isinstance(node, str) and len(node) < 4096 and "\n" not in node:
        match = _CODE.match(node)
        path = Path(match["file"] if match else node)
        with contextlib.suppress(OSError):  # a name that no file can have
            if path.is_file() or path.is_dir():
                yield key, path


def _digest(path: Path) -> str:
    """SHA-256 of a file, or of the names and sums of a folder's data files.

    Raises:
        InputError: It cannot be read.
    """
    try:
        if not path.is_dir():
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        inside = sorted(p for p in path.iterdir() if p.is_file() and p.suffix in _DATA)
        lines = [f"{p.name} {_digest(p)}\n" for p in inside]
        return hashlib.sha256("".join(lines).encode()).hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
