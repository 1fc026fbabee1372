"""A growing run: its files of JSON lines read from where the last look ended, its numbers as columns.

So a page can ask for the points that it does not have yet.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from levelhead.documents import LONGEST_LINE, DocumentError, load_json, require_regular
from levelhead.errors import InputError
from levelhead.metrics import held_out
from levelhead.report.reading import step_of

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


MOST_CURVES = 5000
"""Names that are followed; a log with more than that has names made of data."""
LONGEST_NAME = 200


@dataclass(slots=True)
class Curve:
    """One number over the steps of a stage.

    Attributes:
        steps: Rising, shape (n,).
        values: NaN where the number was not finite, shape (n,).
        epoch: Counts up whenever points that had been there were taken back.
    """

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    epoch: int = 0

    def add(self, step: int, value: float) -> None:
        """Append a point; one at an earlier step takes back what stood from there on, as a resumed run does."""
        if self.steps and step <= self.steps[-1]:
            self.epoch += 1
            while self.steps and self.steps[-1] >= step:
                self.steps.pop()
                self.values.pop()
        self.steps.append(step)
        self.values.append(value)

    def since(self, epoch: int, count: int) -> dict[str, Any]:
        """Return the points behind the first ``count``, or all where those have been taken back."""
        start = count if epoch == self.epoch and 0 <= count <= len(self.steps) else 0
        return {
            "epoch": self.epoch,
            "start": start,
            "steps": self.steps[start:].tolist(),
            "values": [value if math.isfinite(value) else None for value in self.values[start:]],
        }


class Curves:
    """All curves of a run, by stage and name."""

    def __init__(self) -> None:
        self.clear()

    def clear(self, epoch: int = 0) -> None:
        """Forget everything; curves begin with ``epoch``."""
        self._curves: dict[tuple[str, str], Curve] = {}
        self._epoch = epoch
        self.stage = "start"
        self.step = 0
        self.rows = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in one line of ``metrics.jsonl``."""
        self.rows += 1
        stage, step = str(row.get("stage")), step_of(row)
        if stage in ("sft", "grpo"):
            self.stage, self.step = stage, step
        for name, value in row.items():
            if name == "step" or isinstance(value, bool) or len(name) > LONGEST_NAME:
                continue
            if value in ("nan", "inf", "-inf"):
                value = math.nan
            if isinstance(value, int | float):
                self._put(self.stage, name, step, value)
                if row.get(held_out.EVAL_STAGE) in ("start", "sft"):
                    # What was measured before the first GRPO step is where its held-out curves begin.
                    self._put("grpo", name, 0, value)

    def since(self, stage: str, name: str, epoch: int, count: int) -> dict[str, Any] | None:
        """Return the new points of a curve, as :meth:`Curve.since` does; ``None`` where there is no such curve."""
        curve = self._curves.get((stage, name))
        return None if curve is None else curve.since(epoch, count)

    def names(self) -> dict[str, list[str]]:
        """Names by stage, in the order in which they came up."""
        names: dict[str, list[str]] = {}
        for stage, name in self._curves:
            names.setdefault(stage, []).append(name)
        return names

    def _put(self, stage: str, name: str, step: int, value: float) -> None:
        curve = self._curves.get((stage, name))
        if curve is None:
            if len(self._curves) >= MOST_CURVES:
                return
            curve = self._curves[stage, name] = Curve(epoch=self._epoch)
        try:
            curve.add(step, float(value))
        except OverflowError:
            curve.add(step, math.nan)
