"""``metrics.jsonl`` of our own runs: names are canonical already, stages are told apart."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from levelhead.diagnosis.history import DEFAULT_CAPACITY
from levelhead.doctor.readers.base import Row, Unread
from levelhead.doctor.readers.lines import Lines
from levelhead.doctor.readers.values import number_of
from levelhead.documents import DocumentError, load_json
from levelhead.message import Message
from levelhead.metrics import held_out

_MOST_STEPS = 1e15
_BEFORE_GRPO = ("start", "sft")
_NO_JSON = Message("not a line of JSON", "不是一行 JSON")
_NO_STEP = Message("not a step record", "不是训练步的记录")


class OwnRunReader:
    """Rows of the GRPO stage and the evaluations; the supervised stage only where there is no other.

    The last evaluation from before the GRPO stage counts as step 0 of it.
    """

    def __init__(self) -> None:
        self.format = "levelhead"
        self.unread = Unread()
        self._lines = Lines()
        self._number = 0
        self._supervised: deque[Row] = deque(maxlen=DEFAULT_CAPACITY)
        self._before: Row | None = None
        self._reinforced = False

    def feed(self, chunk: bytes) -> Iterator[Row]:
        """Rows of the lines that ``chunk`` completes."""
        for line in self._lines.feed(chunk):
            yield from self._line(line)

    def close(self) -> Iterator[Row]:
        """The last line; the supervised stage of a run that has no other."""
        for line in self._lines.close():
            yield from self._line(line)
        if not self._reinforced:
            yield from self._supervised
            self._supervised.clear()

    def _line(self, line: str) -> Iterator[Row]:
        self._number += 1
        if not line.strip():
            return
        try:
            record = load_json(line)
        except DocumentError:
            self.unread.add(self._number, _NO_JSON(), line)
            return
        row = self._row(record) if isinstance(record, dict) else None
        if row is None:
            self.unread.add(self._number, _NO_STEP(), line)
        elif record.get("stage") == "sft":
            self._supervised.append(row)
        elif record.get("stage") == "eval" and record.get(held_out.EVAL_STAGE) in _BEFORE_GRPO:
            self._before = row
        else:
            if self._before is not None:
                yield self._before
                self._before = None
            self._reinforced |= record.get("stage") != "eval"
            yield row

    def _row(self, record: dict[str, Any]) -> Row | None:
        values = {
            name: number
            for name, value in record.items()
            if isinstance(value, (int, float)) and (number := number_of(value)) is not None
        }
        step = values.pop("step", None)
        if step is None or not abs(step) <= _MOST_STEPS or not values:
            return None
        early = record.get("stage") == "eval" and record.get(held_out.EVAL_STAGE) in _BEFORE_GRPO
        return Row(0.0 if early else step, values, None, self._number)
