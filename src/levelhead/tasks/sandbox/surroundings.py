"""What surrounds a program: what it is shown of the system, its scratch folder, and this process hidden from it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import secrets
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def scratch() -> Iterator[Path]:
    """Give an empty folder of this user alone; on the way out nothing is left of it."""
    folder = Path(tempfile.mkdtemp(prefix="levelhead-"))
    try:
        yield folder
    finally:
        sweep(folder)


def sweep(folder: Path) -> None:
    """Remove a folder without following a link, and however deep it is.

    Nobody may work in it any more.  Folders within are opened to their owner and moved to the top before they are
    emptied, so that no path grows long and no call is nested.  What cannot be removed stays.
    """
    pending = [folder]
    while pending:
        place = pending.pop()
        with contextlib.suppress(OSError):
            place.chmod(0o700)
            with os.scandir(place) as entries:
                inside = list(entries)
            for entry in inside:
                with contextlib.suppress(OSError):
                    pending += _removed(Path(entry.path), folder, is_folder=entry.is_dir(follow_symlinks=False))
            if place != folder:
                place.rmdir()
    with contextlib.suppress(OSError):
        folder.rmdir()


def _removed(place: Path, folder: Path, is_folder: bool) -> list[Path]:
    """Remove a file; open a folder, move it to the top, and return it for later."""
    if not is_folder:
        place.unlink()
        return []
    place.chmod(0o700)
    return [place if place.parent == folder else place.rename(folder / secrets.token_hex(16))]


_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4

_lock = threading.Lock()
_depth = 0
_before = 1


@contextmanager
def hidden() -> Iterator[None]:
    """Close this process's memory, environment and descriptors in ``/proc`` to others of its user.

    The process is not dumpable meanwhile: a debugger of the same user cannot attach, and a crash leaves no core.  It
    may be entered from several threads at once; the last one to leave restores what was before.
    """
    global _depth, _before
    if sys.platform != "linux":
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with _lock:
        if _depth == 0:
            _before = libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
            libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            # The kernel takes 0 or 1 here; any other value is its own.
            if _depth == 0 and _before == 1:
                libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
