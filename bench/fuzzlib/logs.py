"""Logs of every kind that the doctor reads, with numbers good and bad."""

from __future__ import annotations

import gzip
import json
import random
import struct

from fuzzlib.mutate import mutate

_BAD = ("nan", "inf", "-inf", "1e308", "-1e308", "1e400", "0", "-0.5", "-3e-5", "1e-320", "None", "1" * 60, "--")
_KEYS = ("loss", "reward", "reward_std", "grad_norm", "kl", "entropy", "learning_rate", "completion_length",
         "frac_reward_zero_std", "clip_ratio", "rewards/accuracy", "rewards/format", "step_time", "epoch",
         "completions/clipped_ratio", "eval/accuracy", "actor/ppo_kl", "mismatch_kl", "num_tokens")  # fmt: skip


class Numbers:
    """Draws readings: mostly sound ones, some at the edge of floating point."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.bad = rng.choice((0.0, 0.02, 0.3))
        self.scale = rng.choice((1.0, 1.0, 1e-6, -1.0, 1e150, 1e308))

    def __call__(self) -> str:
        if self.rng.random() < self.bad:
            return self.rng.choice(_BAD)
        return f"{self.rng.gauss(0.4, 0.3) * self.scale:.5g}"


def _rows(rng: random.Random) -> list[dict[str, str]]:
    number = Numbers(rng)
    keys = rng.sample(_KEYS, rng.randrange(2, 9))
    start, stride = rng.choice((0, 1, 50, -3, 10**14)), rng.choice((0, 1, 1, 1, 10, -1))
    count = rng.choice((0, 1, 2, 3, 7, 12, 40, 90))
    return [{"step": str(start + i * stride), **{key: number() for key in keys}} for i in range(count)]


def log(rng: random.Random) -> bytes:
    """Return the bytes of a log, sound or damaged."""
    make = rng.choice((_dicts, _json_lines, _dashed, _piped, _csv, _markdown, _html, _loose, _state, _bars, _openrlhf,
                       _workflow, _tensorboard, _wandb, _noise))  # fmt: skip
    data = make(rng)
    data = mutate(data, rng)
    turn = rng.random()
    if turn < 0.03:
        data = data.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-16-be", "latin-1")), "replace")
    elif turn < 0.07:
        data = mutate(gzip.compress(data), rng) if turn < 0.05 else gzip.compress(data)
    return data


def _lines(lines: list[str]) -> bytes:
    return "\n".join(lines).encode("utf-8", "replace") + b"\n"


def _dicts(rng: random.Random) -> bytes:
    return _lines(["{" + ", ".join(f"'{k}': {v}" for k, v in row.items()) + "}" for row in _rows(rng)])


def _json_lines(rng: random.Random) -> bytes:
    rows = [{**row, "stage": "grpo"} if rng.random() < 0.5 else row for row in _rows(rng)]
    return _lines([json.dumps(row).replace('": "', '": ').replace('", ', ", ").replace('"}', "}") for row in rows])


def _state(rng: random.Random) -> bytes:
    indent = rng.choice((None, 2))
    return json.dumps({"global_step": 3, "log_history": _rows(rng)}, indent=indent).encode()


def _dashed(rng: random.Random) -> bytes:
    return _lines([f"step:{r.pop('step')} - " + " - ".join(f"{k}:{v}" for k, v in r.items()) for r in _rows(rng)])


def _piped(rng: random.Random) -> bytes:
    rows = _rows(rng)
    return _lines([f"Step {r.pop('step')} | " + " | ".join(f"{k.title()}: {v}" for k, v in r.items()) for r in rows])


def _csv(rng: random.Random) -> bytes:
    rows, sep = _rows(rng), rng.choice((",", "\t", ";"))
    return _lines([sep.join(rows[0]) if rows else "step,loss", *[sep.join(row.values()) for row in rows]])


def _markdown(rng: random.Random) -> bytes:
    rows = _rows(rng)
    head = [f"| {' | '.join(rows[0])} |", "|" + "---|" * len(rows[0])] if rows else []
    return _lines([*head, *[f"| {' | '.join(row.values())} |" for row in rows]])


def _html(rng: random.Random) -> bytes:
    rows = _rows(rng)
    cells = [rows[0].keys() if rows else (), *[row.values() for row in rows]]
    return _lines(["<table>", *["<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in cells], "</table>"])


def _loose(rng: random.Random) -> bytes:
    mark = rng.choice(("=", ": ", " "))
    return _lines(
        [f"[INFO] iter {r.pop('step')} " + " ".join(f"{k}{mark}{v}" for k, v in r.items()) for r in _rows(rng)]
    )


def _bars(rng: random.Random) -> bytes:
    rows = _rows(rng)
    return _lines([f" 3%|##  | {i}/99 [00:01<00:09, loss={r.get('loss', '1')}, reward={r.get('reward', '2')}]\r{r}"
                   for i, r in enumerate(rows)])  # fmt: skip


def _openrlhf(rng: random.Random) -> bytes:
    rows = _rows(rng)
    return _lines([f"Global step {r['step']}: {{{', '.join(f'{k!r}: {v}' for k, v in r.items())}}}" for r in rows])


def _workflow(rng: random.Random) -> bytes:
    lines = []
    for i, row in enumerate(_rows(rng)):
        lines.append(f"Step {i}/40")
        lines.append(f"DSL质量: fallback={rng.choice(('True', 'False'))}, ops=3, DSL=Custom -> Review ? Revise : done")
        lines.append(f"奖励={row.get('reward', '0.5')}")
        lines.append(rng.choice(("触发梯度更新", "", "no optimizer.step")))
    return _lines(lines)


def _tensorboard(rng: random.Random) -> bytes:
    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    out = bytearray()
    events = [field(3, b"brain.Event:2")]
    for row in _rows(rng)[:30]:
        for key in list(row)[1:3]:
            value = field(
                1, field(1, key.encode()) + b"\x15" + struct.pack("<f", rng.choice((0.3, float("nan"), 3e38)))
            )
            events.append(b"\x10" + bytes([rng.randrange(100)]) + field(5, value))
    for event in events:
        out += struct.pack("<QI", len(event), 0) + event + b"\0\0\0\0"
    return bytes(out)


def _wandb(rng: random.Random) -> bytes:
    out = bytearray(b":W&B" + b"\0\0\0")
    for row in _rows(rng)[:40]:
        items = b""
        for key, value in row.items():
            inner = bytes([10, len(key)]) + key.encode() + b"\x82\x01" + bytes([len(value)]) + value.encode()
            items += bytes([10, len(inner) & 127]) + inner
        history = items[:120]
        record = b"\x12" + bytes([len(history)]) + history
        out += struct.pack("<IHB", 0, len(record), rng.choice((1, 1, 1, 2, 9))) + record
    return bytes(out)


def _noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(3000)) if rng.random() < 0.5 else b"".join(mutate(b"", rng) for _ in range(20))
