"""The rollouts of a run: indexed file by file when they are asked for, filtered, searched and paged."""

from __future__ import annotations

import gzip
import re
import sys
import time
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from levelhead.documents import DocumentError, load_json, read_lines
from levelhead.errors import InputError
from levelhead.report.reading import named, step_of
from levelhead.report.series import number

Row = dict[str, Any]

PAGE = 40
"""Rollouts on a page of the list."""
PREVIEW = 280
"""Characters of a completion in the list."""
MOST_TEXT = 1 << 16
"""Characters of a text in the view of a group."""
MOST_OF_A_GROUP = 128
SECONDS = 0.4
"""After which an answer says how far it came, so that the page can show that and ask on."""

_LONGEST_LINE = 8 << 20
_MOST = 64 << 20
_FILES_IN_MEMORY = 8
_END = 10**12
"""Line that says that a file was read to its end; the page's script can hold it exactly."""
_ENDINGS = (".jsonl.gz", ".jsonl")
_NUMBER = re.compile(r"(\d{1,15})$")
_STAGES = ("start", "sft", "grpo")


@dataclass(frozen=True, slots=True)
class Entry:
    """What the index holds of a rollout: everything that a filter asks for, and no text.

    Attributes:
        line: Its place in the file, from 0.
        task: Its task.
        prompt: Id of its prompt.
        strata: ``key=value`` of each stratum that its prompt is in.
        step: Step at which it was sampled.
        reward: ``None`` where it is no number.
    """

    line: int
    task: str
    prompt: str
    strata: tuple[str, ...]
    step: int
    reward: float | None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rollouts to list; what is ``None`` or empty does not matter.

    Attributes:
        kind: ``train`` for those that were trained on, ``eval`` for held-out ones.
        task: Name of a task.
        stratum: ``key=value``.
        text: Stands in prompt or completion, in small or capital letters.
        steps: First and last step.
        rewards: Least and largest reward.
    """

    kind: str = ""
    task: str = ""
    stratum: str = ""
    text: str = ""
    steps: tuple[float | None, float | None] = (None, None)
    rewards: tuple[float | None, float | None] = (None, None)

    def takes(self, entry: Entry) -> bool:
        """Whether an entry is wanted, its text aside."""
        return (
            (not self.task or entry.task == self.task)
            and (not self.stratum or self.stratum in entry.strata)
            and _within(entry.step, self.steps)
            and _within(entry.reward, self.rewards)
        )

    def takes_text(self, row: Mapping[str, Any]) -> bool:
        """Whether a rollout's text is wanted."""
        wanted = self.text.casefold()
        return not wanted or any(wanted in str(row.get(key, "")).casefold() for key in ("completion", "prompt"))


@dataclass(slots=True)
class _File:
    stamp: tuple[int, int]
    entries: list[Entry] = field(default_factory=list)


class Rollouts:
    """The files of sampled rollouts in a run's folder, newest training step first, then held-out ones.

    Args:
        folder: ``rollouts/`` of the run; it need not exist yet.

    Attributes:
        notes: What could not be read, by file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: dict[str, str] = {}
        self._index: dict[str, _File] = {}
        self._rows: OrderedDict[str, tuple[tuple[int, int], list[Row]]] = OrderedDict()

    def files(self) -> list[str]:
        """Names of the files, in the order of the list."""
        try:
            names = [entry.name for entry in self.folder.iterdir()]
        except OSError:
            return []
        return sorted((n for n in names if n.endswith(_ENDINGS) and not n.startswith(".")), key=_order)

    def page(self, wanted: Filter, after: tuple[str, int] | None = None, seconds: float = SECONDS) -> Row:
        """Return a page of the list.

        Args:
            wanted: Which rollouts.
            after: File and line behind which the page begins; the list's beginning unless given.
            seconds: Time after which the walk pauses, at least one file further on.

        Returns:
            ``rows`` with the beginning of their texts, ``next`` to go on from (``None`` at the end), and what the index
            holds by now: ``files``, ``indexed``, ``rollouts``, ``matching`` (texts aside), ``tasks``, ``strata``.
        """
        names = self.files()
        rows: list[Row] = []
        end = time.monotonic() + seconds
        following: list[Any] | None = None
        begin = _order(after[0]) if after else None
        done = after is not None and after[1] >= _END
        for name in names:
            if begin is not None and (_order(name) < begin or (done and _order(name) == begin)):
                continue
            start = after[1] + 1 if after and name == after[0] else 0
            entries = [e for e in self._entries(name) if e.line >= start and self._takes(name, e, wanted)]
            full = self._read(name, entries, wanted, rows)
            following = [name, rows[-1]["line"] if full else _END]
            if full or time.monotonic() > end:
                break
        else:
            following = None
        return {"rows": rows, "next": following, "files": len(names), **self._facets(names, wanted)}

    def group(self, name: str, task: str, prompt: str) -> list[Row]:
        """Return the rollouts of one prompt in one file, with their whole texts; empty where there are none.

        Args:
            name: One of :meth:`files`; another name reads nothing.
            task: Task of the prompt.
            prompt: Its id.
        """
        if name not in self.files():
            return []
        lines = [e.line for e in self._entries(name) if e.task == task and e.prompt == prompt][:MOST_OF_A_GROUP]
        texts = self._texts(name)
        return [_shown(texts[line], name, line, MOST_TEXT) for line in lines if line < len(texts)]

    def rollout(self, name: str, line: int) -> Row | None:
        """Return one rollout as it stands in its file; ``None`` where there is none."""
        if name not in self.files():
            return None
        rows = self._texts(name)
        return rows[line] if 0 <= line < len(rows) else None

    def _takes(self, name: str, entry: Entry, wanted: Filter) -> bool:
        return wanted.kind in ("", "eval" if name.startswith("eval-") else "train") and wanted.takes(entry)

    def _read(self, name: str, entries: list[Entry], wanted: Filter, rows: list[Row]) -> bool:
        """Append the wanted rollouts of a file to the page; returns whether it is full."""
        texts = self._texts(name) if entries else []
        for entry in entries:
            if entry.line < len(texts) and wanted.takes_text(texts[entry.line]):
                rows.append(_shown(texts[entry.line], name, entry.line, PREVIEW))
                if len(rows) >= PAGE:
                    return True
        return False

    def _facets(self, names: list[str], wanted: Filter) -> Row:
        files = [(name, self._index[name]) for name in names if name in self._index]
        entries = [(name, entry) for name, file in files for entry in file.entries]
        return {
            "indexed": len(files),
            "rollouts": len(entries),
            "matching": sum(self._takes(name, entry, wanted) for name, entry in entries),
            "tasks": sorted({entry.task for _, entry in entries}),
            "strata": sorted({stratum for _, entry in entries for stratum in entry.strata}),
            "notes": [f"{name}: {why}" for name, why in self.notes.items()],
        }

    def _entries(self, name: str) -> list[Entry]:
        stamp = self._stamp(name)
        file = self._index.get(name)
        if file is None or file.stamp != stamp:
            self._rows.pop(name, None)
            file = self._index[name] = _File(stamp, [_entry(i, row) for i, row in enumerate(self._texts(name))])
        return file.entries

    def _stamp(self, name: str) -> tuple[int, int]:
        try:
            state = (self.folder / name).stat()
        except OSError:
            return (0, 0)
        return state.st_mtime_ns, state.st_size

    def _texts(self, name: str) -> list[Row]:
        """The rows of a file; the last few files stay in memory."""
        stamp = self._stamp(name)
        cached = self._rows.get(name)
        if cached is None or cached[0] != stamp:
            cached = stamp, self._load(name)
            self._rows[name] = cached
            if len(self._rows) > _FILES_IN_MEMORY:
                self._rows.popitem(last=False)
        self._rows.move_to_end(name)
        return cached[1]

    def _load(self, name: str) -> list[Row]:
        rows: list[Row] = []
        self.notes.pop(name, None)
        try:
            for line in read_lines(self.folder / name, _LONGEST_LINE, _MOST):
                try:
                    value = load_json(line)
                except DocumentError:
                    continue
                if isinstance(value, dict):
                    rows.append(value)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.notes[name] = "cut off; what could be read is shown"
        except (InputError, OSError) as error:
            self.notes[name] = str(error).removeprefix(f"{self.folder / name}: ")
        return rows


def _entry(line: int, row: Row) -> Entry:
    strata = row.get("strata")
    pairs = strata.items() if isinstance(strata, dict) else ()
    return Entry(
        line=line,
        task=sys.intern(named(row.get("task"))),
        prompt=sys.intern(named(row.get("prompt_id"))),
        strata=tuple(sys.intern(f"{key}={value}"[:200]) for key, value in pairs),
        step=step_of(row),
        reward=number(row.get("reward")),
    )


def _shown(row: Row, name: str, line: int, most: int) -> Row:
    """A rollout for the page: its texts cut to ``most`` characters, everything else as it is."""
    shown = {key: value for key, value in row.items() if key not in ("prompt", "completion", "info", "versions")}
    for key in ("prompt", "completion"):
        text = str(row.get(key, ""))
        shown[key] = text[:most]
        shown[f"{key}_left_out"] = max(0, len(text) - most)
    if most > PREVIEW and row.get("info"):
        shown["info"] = row["info"]
    names = {key: named(row.get(key)) for key in ("task", "prompt_id")}
    return {**shown, **names, "file": name, "line": line}


def _within(value: float | None, bounds: tuple[float | None, float | None]) -> bool:
    low, high = bounds
    if low is None and high is None:
        return True
    return value is not None and (low is None or value >= low) and (high is None or value <= high)


def _order(name: str) -> tuple[int, int, str]:
    """Newest training step first, then the held-out samples from the last stage to the first."""
    stem = name.removesuffix(".gz").removesuffix(".jsonl")
    if stem.startswith("eval-"):
        stage = stem.removeprefix("eval-")
        return 1, -_STAGES.index(stage) if stage in _STAGES else 1, name
    match = _NUMBER.search(stem)
    return 0, -int(match[1]) if match else 1, name
