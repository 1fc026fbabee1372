"""What is said and left behind when the disk is full while a checkpoint is written."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path

from levelhead.errors import InputError
from levelhead.policy.manifest import step_folders


def _out_of_space(error: BaseException | None) -> bool:
    """Whether an error, or one that it came from, says that nothing more can be written."""
    while error is not None:
        number = getattr(error, "errno", None)
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or _NO_SPACE.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


_NO_SPACE = re.compile(r"No space left|File too large|os error (27|28|122)\b")
"""How libraries put it that raise no OSError."""


def _way_out(root: Path) -> str:
    """What a full disk has left: a run with a checkpoint goes on from it, one without begins again."""
    if steps := step_folders(root):
        return f"{steps[-1].name}, saved before, is whole: free some space and continue with --resume"
    return "no checkpoint had been saved before: free some space, and --resume begins the run again"


class full_disk:  # noqa: N801 - reads as a statement
    """Turns a full disk into an error that says what survives."""

    def __init__(self, draft: Path, what: str) -> None:
        self._draft, self._what = draft, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        shutil.rmtree(self._draft, ignore_errors=True)
        if _out_of_space(error):
            raise InputError(
                f"{self._draft.parent}: no space left while saving {self._what}; {_way_out(self._draft.parent)}"
            ) from None
