"""The recipes that ship with the package, found by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from levelhead.errors import InputError

ROOM = "recipes"
_FILE = re.compile(r"\brecipes/([\w.-]+\.py)\b")


@dataclass(frozen=True, slots=True)
class Shipped:
    """One recipe that ships with the package.

    Attributes:
        name: What it is called on the command line: ``dual-tiny``, ``base-tiny/1``.
        path: Its file in the package.
    """

    name: str
    path: Path

    @property
    def text(self) -> str:
        """What the recipe's file holds, comments and all."""
        return self.path.read_text(encoding="utf-8")

    @property
    def about(self) -> str:
        """The first sentence of the comment that it begins with; empty where there is none."""
        lines = []
        for line in self.text.splitlines():
            if not line.startswith("#"):
                break
            lines.append(line.removeprefix("#").strip())
        return re.split(r"(?<=\.)\s", " ".join(lines), maxsplit=1)[0].rstrip(".")

    @property
    def companions(self) -> list[Path]:
        """Reward files that it names and that ship beside it."""
        names = dict.fromkeys(_FILE.findall(self.text))
        return [path for name in names if (path := _room() / name).is_file()]


def shipped() -> list[Shipped]:
    """Return every recipe that ships, by name."""
    room = _room()
    paths = sorted(room.rglob("*.yaml"), key=lambda path: (len(path.parts), path.name))
    return [Shipped(path.relative_to(room).with_suffix("").as_posix(), path) for path in paths]


def by_name(name: str) -> Shipped | None:
    """Return the recipe of a name, with or without its ending; ``None`` where none is called so."""
    stem = name.removesuffix(".yaml")
    return next((recipe for recipe in shipped() if recipe.name == stem), None)


def similar(name: str) -> str:
    """Return the name that is meant where one is misspelt; empty where none is near."""
    near = difflib.get_close_matches(name.removesuffix(".yaml"), [recipe.name for recipe in shipped()], n=1, cutoff=0.6)
    return near[0] if near else ""


def copy(name: str, folder: Path) -> list[Path]:
    """Copy a recipe into a folder, with the reward files that it names; paths in it are those of the copies.

    Returns:
        The files that are written, the recipe first.

    Raises:
        InputError: There is no such recipe, or a file of that name is there already; nothing is written.
    """
    recipe = by_name(name)
    if recipe is None:
        near = similar(name)
        hint = f"; did you mean {near!r}?" if near else ""
        raise InputError(f"{name}: no recipe of this name ships{hint} (levelhead recipes lists them)")
    where = "" if folder == Path() else f"{folder.as_posix()}/"
    named = {f"recipes/{path.name}": f"{where}{path.name}" for path in recipe.companions}
    text = re.sub(_FILE, lambda match: named.get(match.group(), match.group()), recipe.text)
    files = {folder / recipe.path.name: text}
    files |= {folder / path.name: path.read_text(encoding="utf-8") for path in recipe.companions}
    write_new(files)
    return list(files)


def refuse_existing(paths: Iterable[Path]) -> None:
    """Refuse to write over a file.

    Raises:
        InputError: One of the paths is there already.
    """
    if there := next((path for path in paths if path.exists()), None):
        raise InputError(f"{there}: is there already; move it away, or choose another folder with --to")


def write_new(files: dict[Path, str]) -> None:
    """Write new files, all or none.

    Raises:
        InputError: One is there already, or cannot be written.
    """
    refuse_existing(files)
    written: list[Path] = []
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error


def _room() -> Path:
    return Path(str(resources.files("levelhead") / ROOM)).resolve()
