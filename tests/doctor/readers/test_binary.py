from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest

from levelhead.doctor.readers.binary import TensorBoardReader, WandbReader, fields
from levelhead.doctor.readers.sources import read


def varint(value: int) -> bytes:
    out = b""
    while value >= 128:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: bytes | int | float) -> bytes:
    """One protobuf field: varints for whole numbers, 64-bit for floats, length-delimited for bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def event(step: int, tag: str, value: float) -> bytes:
    scalar = field(1, tag.encode()) + varint(2 << 3 | 5) + struct.pack("<f", value)
    return field(1, 1.7e9) + field(2, step) + field(5, field(1, scalar))


def framed(*events: bytes) -> bytes:
    return b"".join(struct.pack("<QI", len(e), 0) + e + struct.pack("<I", 0) for e in events)


def tensorboard() -> bytes:
    version = field(1, 1.7e9) + field(3, b"brain.Event:2")
    events = [event(s, tag, v) for s in (10, 20, 30) for tag, v in (("train/reward", 0.01 * s), ("train/kl", math.nan))]
    return framed(version, *events)


def wandb_record(step: int, **values: object) -> bytes:
    items = b"".join(field(1, field(1, k.encode()) + field(16, json.dumps(v).encode())) for k, v in values.items())
    nested = field(1, field(2, b"train") + field(2, b"kl") + field(16, b"0.25"))
    return field(1, step) + field(2, items + nested + field(2, field(1, step)))


def leveldb(*records: bytes) -> bytes:
    """The LevelDB log format: fragments that never straddle a 32 KiB block."""
    out = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
    for record in records:
        first = True
        while True:
            room = 32768 - len(out) % 32768
            if room < 7:
                out += b"\0" * room
                continue
            piece, record = record[: room - 7], record[room - 7 :]
            kind = (1 if first else 4) if not record else (2 if first else 3)
            out += struct.pack("<IHB", 0, len(piece), kind) + piece
            first = False
            if not record:
                break
    return bytes(out)


def test_scalars_of_event_files_are_joined_by_step(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(tensorboard())
    log = read(tmp_path)
    assert log.format == "tensorboard"
    series = log.history.series("reward")
    assert series.steps == [10, 20, 30]
    assert series.values == pytest.approx([0.1, 0.2, 0.3])
    assert log.history.series("kl").bad.count == 3


def test_tensorboards_own_writer_is_read(tmp_path: Path) -> None:
    summary = pytest.importorskip("tensorboard.summary")
    writer = summary.Writer(str(tmp_path))
    for step in (1, 2, 3):
        writer.add_scalar("train/reward", 0.1 * step, step)
    writer.close()
    series = read(tmp_path).history.series("reward")
    assert series.steps == [1, 2, 3]
    assert series.values == pytest.approx([0.1, 0.2, 0.3])


def test_local_wandb_runs_are_read_over_block_borders(tmp_path: Path) -> None:
    records = [
        wandb_record(i, **{"train/reward": 0.1, "train/global_step": 10 * i, "note": "x" * 300}) for i in range(200)
    ]
    records[50] = wandb_record(50, **{"train/reward": 0.1, "train/global_step": 500, "blob": "y" * 100_000})
    path = tmp_path / "run-abc.wandb"
    path.write_bytes(leveldb(*records))
    log = read(tmp_path)
    assert log.format == "wandb"
    assert log.history.series("reward").steps == [10 * i for i in range(200)]
    assert set(log.history.series("kl").values) == {0.25}


@pytest.mark.parametrize("size", [1, 7, 100, 40_000])
def test_how_the_bytes_are_cut_does_not_matter(size: int) -> None:
    for reader_type, data, count in (
        (TensorBoardReader, tensorboard(), 3),
        (WandbReader, leveldb(*(wandb_record(i, reward=0.5, pad="z" * 900) for i in range(60))), 60),
    ):
        reader = reader_type()
        rows = [row for i in range(0, len(data), size) for row in reader.feed(data[i : i + size])]
        rows += list(reader.close())
        assert len(rows) == count
        assert reader.unread.count == 0


def test_a_damaged_block_costs_that_block_alone() -> None:
    data = bytearray(leveldb(*(wandb_record(i, reward=0.5, pad="z" * 900) for i in range(200))))
    data[5000:7000] = b"\xff" * 2000
    reader = WandbReader()
    rows = list(reader.feed(bytes(data)))
    assert 150 < len(rows) < 200
    assert reader.unread.count >= 1


def test_a_file_that_ends_inside_a_record_is_reported() -> None:
    reader = TensorBoardReader()
    rows = [*reader.feed(tensorboard()[:-9]), *reader.close()]
    assert len(rows) == 3
    assert "inside a record" in reader.unread.samples[0]["why"]


def test_fields_stop_at_what_is_malformed() -> None:
    assert list(fields(b"\xff" * 20)) == []
    assert list(fields(field(1, 5) + b"\x12\xff\xff")) == [(1, 0, 5)]
