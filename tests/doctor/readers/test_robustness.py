"""No byte sequence breaks a reader, no log fills the memory, and how the bytes arrive does not matter."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from levelhead.diagnosis.ranking import VERDICTS, diagnose
from levelhead.doctor.readers import Row, Unread, formats, make_reader, recognise
from levelhead.doctor.readers.collect import HistoryBuilder
from levelhead.doctor.readers.lines import MAX_LINE, gunzip

SAMPLES = [
    b"{'loss': 0.1, 'reward': 0.5, 'reward_std': 0.1, 'kl': nan, 'epoch': 0.1}\n" * 4,
    b'{"log_history": [{"step": 1, "loss": 0.1, "reward": 0.2}, {"step": 2, "loss": 0.1, "reward": 0.3}]}',
    b"(T pid=1) step:1 - actor/entropy:0.4 - critic/score/mean:0.5 - critic/score/max:1.0\n" * 3,
    b"| Step | Reward | KL |\n|---|---|---|\n| 1 | 0.5 | 0.1 |\n| 2 | 0.6 | 0.1 |\n",
    b'"Step","a - train/reward","a - train/reward__MIN"\n"1","0.5","0.4"\n"2","0.6","0.5"\n',
    b"Step 0 | 98.02s | Reward 0.43 | Trainable 96/128 (75.0%)\nStep 0 | 20.1s | Loss 0.001 | Entropy 0.8\n",
    "\U0001f4ca Training Results:\n  • Loss: 0.1\n  • Avg Reward: 0.2\n".encode() * 2,
    "DSL质量: fallback=False, ops=1, DSL=A\n触发梯度更新\n".encode() * 3,
    b'{"step": 1, "stage": "grpo", "reward": 0.5}\n{"step": 2, "stage": "grpo", "reward": 0.5}\n',
    b"Step 3:\n loss: 0.1\n reward: 0.2\n<table><tr><th>Step</th><th>reward</th></tr><tr><td>1</td><td>2</td></tr>",
]


def rows_of(data: bytes, name: str, size: int | None = None) -> tuple[list[Row], Unread]:
    reader = make_reader(name)
    size = size or max(1, len(data))
    rows = [row for i in range(0, len(data), size) for row in reader.feed(data[i : i + size])]
    return rows + list(reader.close()), reader.unread


def collect(rows: list[Row]) -> HistoryBuilder:
    collector = HistoryBuilder(Unread(), capacity=64)
    for row in rows:
        collector.add(row)
    return collector


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=600), st.sampled_from(formats()))
def test_any_bytes_are_survived_by_every_reader(data: bytes, name: str) -> None:
    rows, _ = rows_of(data, name)
    diagnose(collect(rows).run)


@settings(deadline=None, max_examples=250, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(SAMPLES), st.data())
def test_damaged_logs_are_survived_and_diagnosed(sample: bytes, data: st.DataObject) -> None:
    damaged = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(damaged)))
        kind = data.draw(st.sampled_from(["cut", "insert", "flip", "drop"]))
        if kind == "cut":
            del damaged[at:]
        elif kind == "insert":
            damaged[at:at] = data.draw(
                st.sampled_from([b"{", b"}", b"\n", b"nan", b"|", b"9e999", b"\xff", b"1,2,3", b"'", b"<td>"])
            )
        elif kind == "flip" and at < len(damaged):
            damaged[at] ^= data.draw(st.integers(1, 255))
        else:
            del damaged[at : at + 5]
    rows, unread = rows_of(bytes(damaged), recognise(bytes(damaged)))
    assert diagnose(collect(rows).run).verdict in (*VERDICTS, "warning", "critical")
    assert len(unread.to_json()) <= 21


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("size", [1, 3, 17])
def test_how_the_bytes_arrive_does_not_matter(sample: bytes, size: int) -> None:
    name = recognise(sample)
    whole, _ = rows_of(sample, name)
    pieces, _ = rows_of(sample, name, size)
    assert whole
    assert [(r.step, repr(dict(r.values))) for r in pieces] == [(r.step, repr(dict(r.values))) for r in whole]


def test_no_reading_is_made_up() -> None:
    """Every number that a reader returns stands in the log, as it is or by a documented transform."""
    rng = random.Random(0)
    written = [round(rng.uniform(-9, 9), 6) for _ in range(60)]
    text = "".join(f"{{'loss': {a}, 'reward': {b}, 'kl': {c}}}\n" for a, b, c in zip(*[iter(written)] * 3, strict=True))
    rows, _ = rows_of(text.encode(), "trl")
    assert {v for row in rows for v in row.values.values()} <= set(written)


def peak_memory(chunks: Iterator[bytes], name: str) -> float:
    """Peak megabytes while a stream is read and collected."""
    reader = make_reader(name)
    collector = HistoryBuilder(Unread())
    tracemalloc.start()
    try:
        for chunk in chunks:
            for row in reader.feed(chunk):
                collector.add(row)
        for row in reader.close():
            collector.add(row)
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


def test_a_line_without_an_end_is_read_in_bounded_memory() -> None:
    row = b'{"step": %d, "loss": 0.1, "reward": 0.5, "text": "' + b"x" * 20_000 + b'"}, '
    stream = (b"[" + row % 0 if i == 0 else row % i for i in range(400))
    assert peak_memory(stream, "json") < 12 * MAX_LINE / 1e6


@pytest.mark.parametrize("junk", [b"x" * 65_536, b"{'loss': " * 6_000, b"\x00" * 65_536, b"{" * 65_536])
def test_megabytes_of_junk_are_read_in_bounded_memory(junk: bytes) -> None:
    assert peak_memory((junk for _ in range(100)), "text") < 16 * MAX_LINE / 1e6


def test_a_history_of_many_rows_stays_small() -> None:
    stream = (b"{'loss': 0.1, 'reward': 0.5, 'kl': 0.1}\n" * 1000 for _ in range(15))
    assert peak_memory(stream, "trl") < 10


def test_a_line_of_a_thousand_closing_braces_is_followed_for_some_of_them() -> None:
    rows, unread = rows_of(b"'loss': 0.5, 'reward': 0.25}" * 1000, "text")
    assert len(rows) >= 50
    assert unread.count


@pytest.mark.parametrize("odd", ["1" + "0" * 400, "Infinity", "NaN", "true", "null"])
def test_rewards_of_a_group_that_are_no_finite_numbers_make_no_mean(odd: str) -> None:
    rows, _ = rows_of(f'{{"step": 1, "loss": 0.5, "reward": [1.0, {odd}]}}\n'.encode(), "text")
    assert all("reward" not in row.values for row in rows)


def test_a_compressed_log_that_expands_as_none_does_is_refused() -> None:
    row = b"{'loss': 0.5, 'reward': 0.25}\n"
    with pytest.raises(OSError, match="100-fold"):
        sum(map(len, gunzip(iter([gzip.compress(row * 10**6)]))))
    few = gzip.compress(row * 10**5)
    assert sum(map(len, gunzip(iter([few[:99], few[99:]])))) == len(row) * 10**5
    noisy = b"".join(b"{'step': %d, 'loss': %.4f}\n" % (i, (i * 2654435761 % 10**4) / 1e4) for i in range(4 * 10**5))
    assert sum(map(len, gunzip(iter([gzip.compress(noisy)])))) == len(noisy)
