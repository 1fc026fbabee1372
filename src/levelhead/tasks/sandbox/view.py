"""What of the system a program gets to see: an interpreter, its standard library and shared libraries."""

from __future__ import annotations

import functools
import sys
import sysconfig
from pathlib import Path

_LIBRARIES = (
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/lib",
    "/lib64",
    "/nix/store",
    "/etc/ld.so.cache",
    "/usr/share/zoneinfo",
)
_PACKAGES = ("python*/site-packages", "python*/dist-packages")


def interpreter() -> str:
    """Return the interpreter behind a virtual environment: its folder is shown, and not the environment's."""
    return str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())


@functools.cache
def view() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the folders and files that are shown, and the folders below them that are not: installed packages."""
    base = Path(sys.base_prefix).resolve()
    standard = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    own = [base / "lib", base / "lib64", *sorted(standard)]
    shown = dict.fromkeys([interpreter(), *map(str, own), *_LIBRARIES])
    roots = {Path(place).resolve() for place in shown} | {folder.parent for folder in standard}
    packages = {folder.resolve() for root in roots for pattern in _PACKAGES for folder in root.glob(pattern)}
    packages |= {folder / name for folder in standard for name in ("site-packages", "dist-packages")}
    seen = [Path(place).resolve() for place in shown if Path(place).exists()]
    below = {folder for folder in packages if folder.is_dir() and any(place in folder.parents for place in seen)}
    return _topmost(shown), tuple(sorted(str(folder) for folder in below))


def _topmost(places: dict[str, None]) -> tuple[str, ...]:
    """Leave out what does not exist, and what lies below another one."""
    present = [place for place in places if Path(place).exists()]
    folders = {Path(place) for place in present if not Path(place).is_symlink()}
    return tuple(place for place in present if not folders & set(Path(place).parents))
