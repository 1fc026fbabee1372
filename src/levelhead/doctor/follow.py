"""Following a growing log: new rows as they are written, a new diagnosis when it changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from levelhead.diagnosis.ranking import Diagnosis, diagnose
from levelhead.doctor.readers.base import Reader, Unread
from levelhead.doctor.readers.collect import Collector
from levelhead.doctor.readers.detect import HEAD, recognise
from levelhead.doctor.readers.sources import CHUNK, Log, open_reader, read_events, read_files
from levelhead.doctor.report import Report
from levelhead.documents import require_regular
from levelhead.errors import InputError

_FILES = ("metrics.jsonl", "logging.jsonl")
_DOCUMENTS = ("trl-state", "json")
_MIN_ROWS_BETWEEN = 0.02


def follow(
    path: str | Path,
    given: str | None = None,
    keys: Mapping[str, str] | None = None,
    every: float = 2.0,
    idle: Callable[[], bool] = lambda: True,
) -> Iterator[Report]:
    """Yield a report at first, and again whenever the verdict or the leading findings change.

    A file that shrinks (a rewritten ``trainer_state.json``, a rotated log) is read again from its beginning.

    Args:
        path: Log file, or a run folder with a ``metrics.jsonl``; it need not exist yet.
        given: Format name; recognised by content unless given.
        keys: The user's own ``canonical -> raw key`` pairs.
        every: Seconds between looks.
        idle: Called after each look; ``False`` ends the following.

    Raises:
        InputError: If the path is a folder without a log that can be followed, or no regular file.
    """
    tail = _Tail(Path(path), given, keys)
    last: tuple[object, ...] | None = None
    while True:
        diagnosis = tail.look()
        if diagnosis is not None:
            state = _state(diagnosis)
            if state != last:
                last = state
                yield tail.report(diagnosis)
        if not idle():
            return
        time.sleep(every)


def _state(diagnosis: Diagnosis) -> tuple[object, ...]:
    worse = [(f.code, f.severity) for f in diagnosis.findings if f.severity != "info"]
    # Between the verdicts on a run without a fault a growing log may go to and fro.
    return (diagnosis.verdict if diagnosis.faulty else "", *worse[:3])


class _Tail:
    """The part of a file that has been read, and the history it gave."""

    def __init__(self, path: Path, given: str | None, keys: Mapping[str, str] | None) -> None:
        self._path, self._given, self._keys = path, given, keys
        self._begin()

    def _begin(self) -> None:
        self._offset = 0
        self._seen: tuple[int, int] | None = None
        self._reader: Reader | None = None
        self._collector = Collector(Unread())
        self._whole: Log | None = None
        self._judged = 0
        self._events: list[dict[str, Any]] = []
        self._events_seen = 0

    def _file(self) -> Path | None:
        if self._path.is_dir():
            for name in _FILES:
                if (self._path / name).is_file():
                    return self._path / name
            raise InputError(f"{self._path}: no {' or '.join(_FILES)} to follow; give the path of the log file itself")
        if self._path.exists():
            require_regular(self._path)  # a pipe or a device has no beginning to come back to
            return self._path
        return None

    def look(self) -> Diagnosis | None:
        """Read what is new; a diagnosis when there are rows or events that have not been judged."""
        file = self._file()
        if file is None:
            return None
        state = file.stat()
        if state.st_size < self._offset or (self._seen is not None and state.st_ino != self._seen[0]):
            self._begin()
        stamp = (state.st_ino, state.st_mtime_ns)
        if self._whole is not None or (self._offset == 0 and self._is_document(file)):
            if stamp == self._seen:
                return None
            self._whole = read_files([file], self._given, self._keys)
            self._seen, self._offset = stamp, state.st_size
            return diagnose(self._whole.history) if self._whole.history.rows else None
        self._seen = stamp
        self._read_on(file)
        rows, told = self._collector.run.rows, self._read_events()
        # Judging a long history for every single row would cost more than it tells.
        if rows - self._judged < max(1, _MIN_ROWS_BETWEEN * self._judged) and not (told and rows):
            return None
        self._judged = rows
        return diagnose(self._collector.run, events=self._events)

    def _read_events(self) -> bool:
        """Read the events of a run folder where there are new ones; returns whether there are."""
        path = self._path / "events.jsonl"
        if not self._path.is_dir() or not path.is_file() or path.stat().st_mtime_ns == self._events_seen:
            return False
        self._events_seen = path.stat().st_mtime_ns
        self._events = read_events(path)
        return True

    def _is_document(self, file: Path) -> bool:
        """Whether the file is one JSON document, which is rewritten as a whole and not appended to."""
        with file.open("rb") as stream:
            return (self._given or recognise(stream.read(HEAD))) in _DOCUMENTS

    def _read_on(self, file: Path) -> None:
        try:
            with file.open("rb") as stream:
                stream.seek(self._offset)
                while chunk := stream.read(CHUNK):
                    self._offset += len(chunk)
                    if self._reader is None:
                        self._reader = open_reader(file, chunk[:HEAD], self._given, self._keys)
                    for row in self._reader.feed(chunk):
                        self._collector.add(row)
        except OSError as error:
            raise InputError(f"{file}: cannot be read ({error.strerror or error})") from error

    def report(self, diagnosis: Diagnosis) -> Report:
        """The report for a diagnosis of what was read so far."""
        if self._whole is not None:
            return Report(self._whole, diagnosis, str(self._path))
        reader = self._reader
        unread = reader.unread if reader else Unread()
        log = Log(reader.format if reader else "text", self._collector.run, unread, events=self._events)
        return Report(log, diagnosis, str(self._path))
