"""Reading a growing file of JSON lines from where the last look ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from levelhead.documents import LONGEST_LINE, DocumentError, load_json, require_regular
from levelhead.errors import InputError

Row = dict[str, Any]

MOST_A_LOOK = 16 << 20
"""Bytes that one look reads; what is beyond them waits for the next look."""


def leads_out(folder: Path, path: Path) -> bool:
    """Whether a path within a run's folder is a link to somewhere else, which a run of unknown origin may not name."""
    try:
        return not path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return True


class Tail:
    """The end of a growing file of JSON lines.

    A line that is not finished yet waits for its end; one that is no JSON object is left out and counted.

    Args:
        path: The file; it need not exist yet.

    Attributes:
        offset: Bytes of finished lines that have been read.
        broken: Lines that were left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.broken = 0
        self._inode: int | None = None
        self._last = b""

    def look(self) -> tuple[list[Row], bool]:
        """Return the lines that are new, and whether the file was begun anew, so that all earlier lines are void."""
        try:
            if leads_out(self.path.parent, self.path):
                return [], False
            require_regular(self.path)
            with self.path.open("rb") as file:
                anew = self._begun_anew(file)
                if anew:
                    self.offset, self.broken, self._last = 0, 0, b""
                file.seek(self.offset)
                data = file.read(MOST_A_LOOK)
        except (InputError, OSError):
            return [], False
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) == MOST_A_LOOK:
            # A line of that length is no metric; it is passed over piece by piece.
            whole = len(data)
        self.offset += whole
        lines = data[:whole].split(b"\n")[:-1] if data[:whole].endswith(b"\n") else [data[:whole]] if whole else []
        if lines:
            self._last = lines[-1][-64:] + b"\n"
        return [row for line in lines if (row := self._row(line)) is not None], anew

    def _begun_anew(self, file: Any) -> bool:
        """Whether the file is another one, shorter, or differs where the last look ended (a resumed run cut it)."""
        import os

        state = os.fstat(file.fileno())
        before, self._inode = self._inode, state.st_ino
        if before is None:
            return False
        if state.st_ino != before or state.st_size < self.offset:
            return True
        file.seek(max(0, self.offset - len(self._last)))
        return bool(self._last) and file.read(len(self._last)) != self._last

    def _row(self, line: bytes) -> Row | None:
        if not line.strip():
            return None
        try:
            value = load_json(line.decode("utf-8", "replace")) if len(line) <= LONGEST_LINE else None
        except DocumentError:
            value = None
        if isinstance(value, dict):
            return value
        self.broken += 1
        return None
