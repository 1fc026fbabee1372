"""The rollouts of a run: indexed file by file when they are asked for, filtered, searched and paged."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from levelhead.report.reading import named
from levelhead.report.watch.index import BytesCache, FileIndex, IntArray, read_row, stamp_of
from levelhead.report.watch.tail import leads_out

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

BYTES_IN_MEMORY = 64 << 20
"""Bytes of unpacked files that stay in memory."""

_END = 10**12
"""Line that says that a file was read to its end; the page's script can hold it exactly."""
_ENDINGS = (".jsonl.gz", ".jsonl")
_NUMBER = re.compile(r"(\d{1,15})$")
_STAGES = ("start", "sft", "grpo")


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

    def chosen(self, name: str, index: FileIndex) -> IntArray:
        """Return the places of the wanted rollouts of a file, their texts aside.

        Args:
            name: The file's.
            index: What is known of its rollouts.
        """
        if self.kind not in ("", "eval" if name.startswith("eval-") else "train"):
            return np.zeros(0, dtype=np.int64)
        wanted = np.ones(len(index), dtype=bool)
        if self.task:
            wanted &= index.of_task(self.task)
        if self.stratum:
            wanted &= index.of_stratum(self.stratum)
        for values, (low, high) in ((index.steps, self.steps), (index.rewards, self.rewards)):
            if low is not None:
                wanted &= values >= low
            if high is not None:
                wanted &= values <= high
        return np.flatnonzero(wanted)

    def takes_text(self, row: Mapping[str, Any]) -> bool:
        """Whether a rollout's text is wanted."""
        wanted = self.text.casefold()
        return not wanted or any(wanted in str(row.get(key, "")).casefold() for key in ("completion", "prompt"))

    def may_take(self, line: bytes) -> bool:
        """Whether a line of a file can hold the wanted text, by a look that is quicker than reading it as JSON."""
        if not self.text or b"\\u" in line or b"\\/" in line:
            return True
        spelt = json.dumps(self.text, ensure_ascii=False)[1:-1].casefold()
        return spelt in line.decode("utf-8", "replace").casefold()


class Rollouts:
    """The files of sampled rollouts in a run's folder, newest training step first, then held-out ones.

    Of a file an index is kept, a few bytes a rollout, and of the last few files their bytes; no rollout is.

    Args:
        folder: ``rollouts/`` of the run; it need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._index: dict[str, FileIndex] = {}
        self._bytes = BytesCache(BYTES_IN_MEMORY)

    @property
    def notes(self) -> dict[str, str]:
        """What could not be read, by file."""
        return {name: index.note for name, index in self._index.items() if index.note}

    def files(self) -> list[str]:
        """Names of the files, in the order of the list."""
        try:
            if leads_out(self.folder.parent, self.folder):
                return []
            with os.scandir(self.folder) as entries:
                names = [one.name for one in entries if not one.is_symlink() or not leads_out(self.folder, Path(one))]
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
            places = wanted.chosen(name, self._indexed(name))
            full = self._read(name, places[places >= start], wanted, rows)
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
        index, rows = self._indexed(name), []
        for place in map(int, np.flatnonzero(index.of_task(task) & index.of_prompt(prompt))[:MOST_OF_A_GROUP]):
            row = self._row(name, place)
            if row is not None and named(row.get("prompt_id")) == prompt:
                rows.append(_shown(row, name, place, MOST_TEXT))
        return rows

    def rollout(self, name: str, line: int) -> Row | None:
        """Return one rollout as it stands in its file; ``None`` where there is none."""
        if name not in self.files() or not 0 <= line < len(self._indexed(name)):
            return None
        return self._row(name, line)

    def _read(self, name: str, places: IntArray, wanted: Filter, rows: list[Row]) -> bool:
        """Append the wanted rollouts of a file to the page; returns whether it is full."""
        index = self._index[name]
        data = self._bytes.of(self.folder / name, index.stamp) if len(places) else b""
        if not wanted.may_take(data):
            return False
        for place in map(int, places):
            line = index.line(data, place)
            row = read_row(line) if wanted.may_take(line) else None
            if row is not None and wanted.takes_text(row):
                rows.append(_shown(row, name, place, PREVIEW))
                if len(rows) >= PAGE:
                    return True
        return False

    def _row(self, name: str, place: int) -> Row | None:
        index = self._indexed(name)
        return read_row(index.line(self._bytes.of(self.folder / name, index.stamp), place))

    def _indexed(self, name: str) -> FileIndex:
        """The index of a file, made anew where the file has changed."""
        stamp = stamp_of(self.folder / name)
        index = self._index.get(name)
        if index is None or index.stamp != stamp:
            data = self._bytes.of(self.folder / name, stamp)
            index = self._index[name] = FileIndex(data, stamp, self._bytes.note(self.folder / name))
        return index

    def _facets(self, names: list[str], wanted: Filter) -> Row:
        indices = [(name, self._index[name]) for name in names if name in self._index]
        return {
            "indexed": len(indices),
            "rollouts": sum(len(index) for _, index in indices),
            "matching": sum(len(wanted.chosen(name, index)) for name, index in indices),
            "tasks": sorted({task for _, index in indices for task in index.task_names}),
            "strata": sorted({stratum for _, index in indices for stratum in index.strata}),
            "notes": [f"{name}: {index.note}" for name, index in indices if index.note],
        }


def _shown(row: Row, name: str, line: int, most: int) -> Row:
    """A rollout for the page: its texts cut to ``most`` characters, everything else as it is unless it is large."""
    left_out = ("prompt", "completion", "info", "versions")
    shown = {key: value for key, value in row.items() if key not in left_out and _is_small(value, most)}
    for key in ("prompt", "completion"):
        text = str(row.get(key, ""))
        shown[key] = text[:most]
        shown[f"{key}_left_out"] = max(0, len(text) - most)
    if most > PREVIEW and row.get("info") and _is_small(row["info"], most):
        shown["info"] = row["info"]
    names = {key: named(row.get(key)) for key in ("task", "prompt_id")}
    return {**shown, **names, "file": name, "line": line}


def _is_small(value: Any, most: int) -> bool:
    """Whether a value has no more than ``most`` characters, and as many parts."""
    parts, size = [value], 0
    while parts and size + len(parts) <= most:
        part = parts.pop()
        inside = [*part.keys(), *part.values()] if isinstance(part, dict) else part if isinstance(part, list) else ()
        size += len(part) if isinstance(part, str) else 1
        if len(inside) > most:
            return False
        parts.extend(inside)
    return size <= most and not parts


def _order(name: str) -> tuple[int, int, str]:
    """Newest training step first, then the held-out samples from the last stage to the first."""
    stem = name.removesuffix(".gz").removesuffix(".jsonl")
    if stem.startswith("eval-"):
        stage = stem.removeprefix("eval-")
        return 1, -_STAGES.index(stage) if stage in _STAGES else 1, name
    match = _NUMBER.search(stem)
    return 0, -int(match[1]) if match else 1, name
