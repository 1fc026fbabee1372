"""Removing what a program left on disk, whatever it made of its folder."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
