"""Seeded mutations of bytes and of plain data, with the values that break readers."""

from __future__ import annotations

import json
import random
from typing import Any

HOSTILE: tuple[bytes, ...] = (
    b"\x1b]0;owned\x07", b"\x1b[2J\x1b[H", b"\x9b31m", "\x9b31m".encode(), "\u202e\u2066".encode(), b"\x7f\x08\x08",
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\r", b"\r\n", b"\n\n", b"{", b"}", b"{{", b"[" * 700,
    b"{'a':" * 400, b"|" * 40, b",,,,", b"\t\t", b"1" * 6000, b"1," * 2000, b" " * 3000, b"-" * 500, b"a" * 4000,
    b"a b " * 800, b"1e308", b"-1e308", b"1e400", b"nan", b"inf", b"-inf", b"0x10", b"1_000", b"1,000,000.5",
    b"\xc2\xb2",
    "0.1\u00b10.2".encode(), b"np.float64(1e308)", b"Infinity", b"None", b"null", b"true", b"step:", b"Step 3 | ",
    b"loss=", b"reward: ", b"<tr><td>", b"</tr>", b"%|", b"100%|####| 3/9 [", "\u6b65\u9aa4".encode(), b"\\ud800",
    b"'", b'"', b"\\", b"&a ", b"*a", b"!!float x", b"<<: ", b"? ",
)  # fmt: skip
"""Pieces of bytes that end a state, begin one, or look like a number and are none."""

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 10**400, -(10**30), 1e308, -1e308, 1e-320, float("nan"), float("inf"), -float("inf"), "",
    "nan", "-inf", "\x1b]0;owned\x07", "\x9b31m\u202e", "\ud800", "a" * 3000, "../..", "1e308", [], [[]], [None], {},
    {"a": {}}, [1, [2, [3]]], {"": ""}, {"score": {"score": "x"}}, "2001-01-01", "<script>alert(1)</script>",
)  # fmt: skip
"""What may stand where a file should hold something else."""

NAMES = (
    "step",
    "stage",
    "reward",
    "task",
    "kind",
    "score",
    "\x1b[31m",
    "reward/",
    "rewards//mean",
    "eval/",
    "\u202e",
    "",
)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with some of them changed, left out, repeated, or hostile ones put in."""
    changed = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 2, 3, 5, 9, 20))):
        at = rng.randrange(len(changed) + 1)
        size = rng.choice((1, 2, 8, 60, 500))
        act = rng.randrange(7)
        if act == 0 and changed:
            changed[min(at, len(changed) - 1)] = rng.randrange(256)
        elif act == 1:
            del changed[at : at + size]
        elif act in (2, 3):
            changed[at:at] = rng.choice(HOSTILE)
        elif act == 4:
            changed[at:at] = bytes(changed[at : at + size]) * rng.choice((1, 2, 30))
        elif act == 5:
            del changed[at:]
        else:
            other = rng.randrange(len(changed) + 1)
            changed[at:at] = bytes(changed[other : other + size])
    if rng.random() < 0.02:
        changed = bytearray(bytes(changed[: rng.randrange(1, 200)]) * rng.randrange(2, 3000))
    return bytes(changed)


def warp(value: Any, rng: random.Random, rate: float = 0.04) -> Any:
    """Return plain data with some of its leaves, keys and branches replaced, left out or doubled."""
    if rng.random() < rate:
        return rng.choice(VALUES)
    if isinstance(value, dict):
        warped = {}
        for key, inner in value.items():
            if rng.random() < rate / 2:
                continue
            name = rng.choice(NAMES) if rng.random() < rate / 2 else key
            warped[name] = warp(inner, rng, rate)
        return warped
    if isinstance(value, list):
        items = [warp(item, rng, rate) for item in value if rng.random() > rate / 2]
        return items + items[:1] * rng.choice((1, 40)) if rng.random() < rate / 2 else items
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < rate:
        return rng.choice((-value, value * 1e300, value * 1e-300, 0, -1, 2**63, float("nan")))
    return value


def as_json(value: Any) -> bytes:
    """Return a line of JSON, in which NaN may stand bare."""
    return json.dumps(value, default=str).encode()
