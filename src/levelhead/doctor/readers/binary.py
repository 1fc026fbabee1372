"""Binary logs without their libraries: TensorBoard event files and local Weights & Biases runs.

Both are streams of length-prefixed protobuf messages; only the few fields that carry scalars are decoded.  Layouts:
TFRecord framing (u64 length, u32 CRC, data, u32 CRC) around ``tensorflow.Event``; the LevelDB log format (32 KiB
blocks of u32 checksum, u16 length, u8 type, data) around ``wandb_internal.Record``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from levelhead.doctor.readers.base import Row, Translator, Unread
from levelhead.doctor.readers.values import flatten
from levelhead.message import Message

_MAX_MESSAGE = 64 << 20
_WANDB_MAGIC = b":W&B"
_BLOCK = 32768
_HEADER = 7
_IMPOSSIBLE = Message(
    "a record of impossible length; the rest of the file is not read", "记录长度不可能成立\uff0c文件其余部分未读取"
)
_ENDS_INSIDE = Message("the file ends inside a record", "文件在一条记录中间结束")
_DAMAGED = Message("a damaged record; reading goes on at the next block", "记录已损坏\uff0c从下一个数据块继续读取")


def fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Fields of a protobuf message: ``(number, wire type, value)``; stops quietly at the first malformed one."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        if at < 0:
            return
        number, wire = tag >> 3, tag & 7
        value: Any
        if wire == 0:
            value, at = _varint(data, at)
            if at < 0:
                return
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = data[at : at + size], at + size
            if len(value) < size:
                return
        elif wire == 2:
            length, at = _varint(data, at)
            if at < 0 or at + length > end:
                return
            value, at = data[at : at + length], at + length
        else:
            return
        yield number, wire, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return 0, -1


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


class TensorBoardReader:
    """Scalars of a ``tfevents`` file; a ``train/`` prefix is the Hugging Face writer's and is mapped away."""

    def __init__(self, extra: Mapping[str, str] | None = None) -> None:
        self.format = "tensorboard"
        self.unread = Unread()
        self._translator = Translator("tensorboard", extra)
        self._buffer = bytearray()
        self._number = 0
        self._step: int | None = None
        self._pairs: list[tuple[str, float]] = []

    def feed(self, chunk: bytes) -> Iterator[Row]:
        """Rows of the steps that ``chunk`` completes: consecutive events of one step are one row."""
        self._buffer += chunk
        at = 0
        while len(self._buffer) - at >= 12:
            (length,) = struct.unpack_from("<Q", self._buffer, at)
            if length > _MAX_MESSAGE:
                self.unread.add(self._number + 1, _IMPOSSIBLE())
                at = len(self._buffer)
                break
            if len(self._buffer) - at < 16 + length:
                break
            yield from self._event(bytes(self._buffer[at + 12 : at + 12 + length]))
            at += 16 + length
        del self._buffer[:at]

    def close(self) -> Iterator[Row]:
        """Yield the row of the last step."""
        if self._buffer:
            self.unread.add(self._number + 1, _ENDS_INSIDE())
            self._buffer.clear()
        yield from self._flush()

    def _event(self, data: bytes) -> Iterator[Row]:
        self._number += 1
        step, scalars = 0, []
        for number, wire, value in fields(data):
            if number == 2 and wire == 0:
                step = _signed(value)
            elif number == 5 and wire == 2:
                scalars += [scalar for n, w, v in fields(value) if n == 1 and w == 2 and (scalar := _scalar(v))]
        if not scalars:
            return
        if step != self._step:
            yield from self._flush()
            self._step = step
        self._pairs += scalars

    def _flush(self) -> Iterator[Row]:
        pairs, self._pairs = self._pairs, []
        row = self._translator.row(pairs, self._number, least=0)
        if row and self._step is not None:
            yield Row(float(self._step), row.values, row.epoch, self._number)


def _scalar(data: bytes) -> tuple[str, float] | None:
    """Tag and number of one ``Summary.Value``: ``simple_value``, or a tensor of one float or double."""
    tag: str | None = None
    number: float | None = None
    for field, wire, value in fields(data):
        if field == 1 and wire == 2:
            tag = _text(value)
        elif field == 2 and wire == 5:
            (number,) = struct.unpack("<f", value)
        elif field == 8 and wire == 2:
            number = _tensor(value)
    return (tag, number) if tag is not None and number is not None else None


def _tensor(data: bytes) -> float | None:
    kind = 0
    for field, wire, value in fields(data):
        if field == 1 and wire == 0:
            kind = value
        elif field == 4 and wire == 2 and kind in (1, 2):
            layout, size = ("<f", 4) if kind == 1 else ("<d", 8)
            return float(struct.unpack(layout, value)[0]) if len(value) == size else None
        elif field == 5 and wire in (2, 5) and len(value) == 4:
            return float(struct.unpack("<f", value)[0])
        elif field == 6 and wire in (1, 2) and len(value) == 8:
            return float(struct.unpack("<d", value)[0])
    return None


class WandbReader:
    """History rows of a local ``run-ID.wandb`` file."""

    def __init__(self, extra: Mapping[str, str] | None = None) -> None:
        self.format = "wandb"
        self.unread = Unread()
        self._translator = Translator("wandb", extra)
        self._buffer = bytearray()
        self._offset = 0
        self._number = 0
        self._parts = bytearray()
        self._started = False
        self._skip = 0

    def feed(self, chunk: bytes) -> Iterator[Row]:
        """Rows of the records that ``chunk`` completes."""
        self._buffer += chunk
        if not self._skipped():
            return
        if not self._started:
            if len(self._buffer) < _HEADER:
                return
            self._started = True
            if self._buffer.startswith(_WANDB_MAGIC):
                self._drop(_HEADER)
        while True:
            room = _BLOCK - self._offset % _BLOCK
            if room < _HEADER:
                if len(self._buffer) < room:
                    return
                self._drop(room)
                continue
            if len(self._buffer) < _HEADER:
                return
            _, length, kind = struct.unpack_from("<IHB", self._buffer)
            if kind not in (1, 2, 3, 4) or length > room - _HEADER:
                if not self._resync(room):
                    return
                continue
            if len(self._buffer) < _HEADER + length:
                return
            data = bytes(self._buffer[_HEADER : _HEADER + length])
            self._drop(_HEADER + length)
            yield from self._fragment(kind, data)

    def close(self) -> Iterator[Row]:
        """Nothing waits; a record cut at the end of the file is reported."""
        if self._buffer and any(self._buffer):
            self.unread.add(self._number + 1, _ENDS_INSIDE())
        self._buffer.clear()
        yield from ()

    def _drop(self, count: int) -> None:
        del self._buffer[:count]
        self._offset += count

    def _resync(self, room: int) -> bool:
        """Skip to the next block after a damaged fragment; false where it is not there yet."""
        self.unread.add(self._number + 1, _DAMAGED())
        self._parts.clear()
        self._skip = room
        return self._skipped()

    def _skipped(self) -> bool:
        """Drop what is still to be skipped; false while more input is needed for it."""
        count = min(self._skip, len(self._buffer))
        self._drop(count)
        self._skip -= count
        return self._skip == 0

    def _fragment(self, kind: int, data: bytes) -> Iterator[Row]:
        if kind in (1, 2):
            self._parts = bytearray(data)
        elif len(self._parts) + len(data) <= _MAX_MESSAGE:
            self._parts += data
        if kind in (1, 4):
            message, self._parts = bytes(self._parts), bytearray()
            self._number += 1
            if row := self._record(message):
                yield row

    def _record(self, data: bytes) -> Row | None:
        for number, wire, value in fields(data):
            if number == 2 and wire == 2:
                pairs: list[tuple[str, Any]] = []
                for n, w, v in fields(value):
                    if n == 1 and w == 2:
                        pairs += _history_item(v)
                    elif n == 2 and w == 2:
                        pairs += [("_step", float(_signed(s))) for m, t, s in fields(v) if m == 1 and t == 0]
                return self._translator.row(pairs, self._number, least=0)
        return None


def _history_item(data: bytes) -> list[tuple[str, Any]]:
    key, nested, text = "", [], ""
    for number, wire, value in fields(data):
        if wire != 2:
            continue
        if number == 1:
            key = _text(value)
        elif number == 2:
            nested.append(_text(value))
        elif number == 16 and len(value) < 4096:
            text = _text(value)
    name = key or "/".join(nested)
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if isinstance(parsed, dict):
        return [(f"{name}/{k}", v) for k, v in flatten(parsed)]
    return [(name, parsed)]
