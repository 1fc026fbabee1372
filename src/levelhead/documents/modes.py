"""Who may read the files of a folder: whoever may read what is plainly written there."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def open_to_readers(folder: Path) -> None:
    """Give every file below a folder the mode that a plainly written file gets there, by the user's umask.

    What writes through a temporary file (``safetensors`` among others) leaves files that their owner alone may read.  A
    file system that has no modes is left as it is.

    Args:
        folder: With files; a single file is meant as well.
    """
    mode = _plain_mode(folder if folder.is_dir() else folder.parent)
    for path in folder.rglob("*") if folder.is_dir() else (folder,):
        if path.is_file() and not path.is_symlink() and path.stat().st_mode & 0o777 != mode:
            with contextlib.suppress(PermissionError):
                path.chmod(mode)


def _plain_mode(folder: Path) -> int:
    """The umask itself can only be read by changing it, for all threads; a file is asked instead."""
    probe = folder / f".mode-{os.getpid()}.tmp"
    probe.touch()
    try:
        return probe.stat().st_mode & 0o777
    finally:
        probe.unlink()
