"""What is kept of a file of rollouts: where each stands and what filters ask for, a few bytes a rollout."""

from __future__ import annotations

import gzip
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from levelhead.documents import DocumentError, load_json, require_regular
from levelhead.errors import InputError
from levelhead.report.reading import named, step_of
from levelhead.report.series import number

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Stamp = tuple[int, int]
"""When a file was changed, and its size."""

MOST_BYTES = 64 << 20
"""Bytes of a file, unpacked, that are read."""
MOST_ROWS = 1 << 16
"""Rollouts of a file that are shown."""
LONGEST_LINE = 4 << 20
"""Bytes of a rollout."""
_MOST_NAMES = 1000
"""Different tasks, and different strata, of a file that are told apart."""


class FileIndex:
    """An index of the rollouts in a file of JSON lines; lines that are no JSON object are left out.

    Args:
        data: The file's bytes, unpacked.
        stamp: Of the file.
        note: What is wrong with the file, if anything.

    Attributes:
        steps: At which each was sampled, ``[rollouts]``.
        rewards: Of each, NaN where it is no number, ``[rollouts]``.
        task_names: Of all, in the order of their numbers.
        strata: ``key=value`` of all, in the order of their numbers.
        note: What could not be read.
    """

    def __init__(self, data: bytes, stamp: Stamp, note: str = "") -> None:
        self.stamp, self.note = stamp, note
        self.task_names: dict[str, int] = {}
        self.strata: dict[str, int] = {}
        self._groups: dict[tuple[int, ...], int] = {}
        rows: list[tuple[int, int, int, int, int, int, float]] = []
        at = left_out = 0
        while at < len(data) and len(rows) < MOST_ROWS:
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            row = read_row(data[at:end])
            if row is not None:
                rows.append((at, end, *self._numbers(row)))
            left_out += row is None and end > at
            at = end + 1
        if at < len(data):
            self.note = self.note or f"holds more than {MOST_ROWS} rollouts; the first ones are shown"
        elif left_out and not self.note:
            self.note = f"{left_out} lines are no JSON object of at most {LONGEST_LINE >> 20} MiB and are left out"
        columns = list(zip(*rows, strict=True)) or [()] * 7
        self._starts, self._ends, self._tasks, self._prompts, self._sets, self.steps = (
            np.array(column, dtype=np.int64) for column in columns[:6]
        )
        self.rewards = np.array(columns[6], dtype=np.float64)

    def __len__(self) -> int:
        """Return the number of rollouts."""
        return len(self.steps)

    def line(self, data: bytes, place: int) -> bytes:
        """Return the line of a rollout, of the file's bytes."""
        return data[self._starts[place] : self._ends[place]]

    def of_task(self, name: str) -> BoolArray:
        """Return which rollouts are of a task."""
        return np.equal(self._tasks, self.task_names.get(name, -1))

    def of_prompt(self, name: str) -> BoolArray:
        """Return which rollouts may be of a prompt: names of one hash are not told apart."""
        return np.equal(self._prompts, _hash(name))

    def of_stratum(self, name: str) -> BoolArray:
        """Return which rollouts are in a stratum."""
        number_ = self.strata.get(name, -1)
        return np.isin(self._sets, [group for members, group in self._groups.items() if number_ in members])

    def _numbers(self, row: dict[str, Any]) -> tuple[int, int, int, int, float]:
        strata = row.get("strata")
        pairs = strata.items() if isinstance(strata, dict) else ()
        members = tuple(_numbered(self.strata, f"{key}={value}"[:200]) for key, value in list(pairs)[:_MOST_NAMES])
        group = self._groups.setdefault(members, len(self._groups)) if len(self._groups) < MOST_ROWS else -1
        step, reward = min(step_of(row), 2**62), number(row.get("reward"))
        task = _numbered(self.task_names, named(row.get("task")))
        return task, _hash(named(row.get("prompt_id"))), group, step, np.nan if reward is None else reward


class BytesCache:
    """The bytes of files, unpacked, of which the last few stay in memory.

    Args:
        most: Bytes that stay.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._files: OrderedDict[Path, tuple[Stamp, bytes, str]] = OrderedDict()

    def of(self, path: Path, stamp: Stamp) -> bytes:
        """Return a file's bytes; what cannot be read of it is missing, and :meth:`note` says why.

        Args:
            path: The file.
            stamp: What is remembered of it holds for this one alone.
        """
        if path not in self._files or self._files[path][0] != stamp:
            self._files.pop(path, None)
            while self._files and sum(len(data) for _, data, _ in self._files.values()) > self._most // 2:
                self._files.popitem(last=False)
            self._files[path] = (stamp, *_unpacked(path))
        self._files.move_to_end(path)
        return self._files[path][1]

    def note(self, path: Path) -> str:
        """Return what is wrong with a file that has just been read; empty where nothing is."""
        return self._files[path][2] if path in self._files else ""


def stamp_of(path: Path) -> Stamp:
    """Return what changes when a file does."""
    try:
        state = path.stat()
    except OSError:
        return (0, 0)
    return state.st_mtime_ns, state.st_size


def read_row(line: bytes) -> dict[str, Any] | None:
    """Return a line as a JSON object; ``None`` where it is none, or too long."""
    if len(line) > LONGEST_LINE or not line.strip():
        return None
    try:
        value = load_json(line.decode("utf-8", "replace"))
    except DocumentError:
        return None
    return value if isinstance(value, dict) else None


def _unpacked(path: Path) -> tuple[bytes, str]:
    """A file's bytes as far as they can be read, and what is wrong with it."""
    held = bytearray()
    try:
        require_regular(path)
        with path.open("rb") as raw:
            file: Any = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            while len(held) <= MOST_BYTES and (piece := file.read(1 << 20)):
                held += piece
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return bytes(held), "cut off; what could be read is shown"
    except (InputError, OSError) as error:
        return bytes(held), str(error).removeprefix(f"{path}: ")
    if len(held) > MOST_BYTES:
        return bytes(held[:MOST_BYTES]), f"holds more than {MOST_BYTES >> 20} MiB of text; the rest was not read"
    return bytes(held), ""


def _numbered(names: dict[str, int], name: str) -> int:
    """The number of a name; one of too many is told apart from no other."""
    return names.setdefault(name, len(names)) if name in names or len(names) < _MOST_NAMES else -1


def _hash(name: str) -> int:
    return hash(name)
