"""Runs inputs in a child process under a watch on time and memory; a child that is killed gives way to another."""

from __future__ import annotations

import json
import os
import random
import resource
import select
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzzlib.targets import TARGETS, CrashError, emptied, warm

SLOW_S = 5.0
"""Processor seconds beyond which an input counts as a hang."""
KILL_S = 30.0
"""Seconds of waiting after which the child is killed: a hang too."""
MEMORY_MB = 500
"""Growth of the resident memory over an idle child's that counts as too much."""


@dataclass(slots=True)
class Tally:
    """What came of the inputs of one target.

    Attributes:
        inputs: How many were tried.
        crashes: Inputs that ended a command with a traceback, by the line that raised.
        hangs: Inputs that took longer than :data:`SLOW_S`.
        memory: Inputs that took more than :data:`MEMORY_MB`.
        controls: Control characters printed.
        seconds: Wall clock.
        slowest: Seconds of the slowest input, and its number.
        peak_mb: Largest growth of memory.
        examples: First input of each kind of crash.
    """

    inputs: int = 0
    crashes: Counter[str] = field(default_factory=Counter)
    hangs: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    controls: int = 0
    seconds: float = 0.0
    slowest: tuple[float, int] = (0.0, -1)
    peak_mb: float = 0.0
    examples: dict[str, int] = field(default_factory=dict)
    noisy: list[int] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not (self.crashes or self.hangs or self.memory or self.controls)

    def to_json(self) -> dict[str, Any]:
        return {
            "inputs": self.inputs, "crashes": sum(self.crashes.values()), "hangs": len(self.hangs),
            "memory": len(self.memory), "controls": self.controls, "seconds": round(self.seconds, 1),
            "slowest_s": round(self.slowest[0], 2), "peak_mb": round(self.peak_mb),
            "where": {where: {"times": n, "first": self.examples[where]} for where, n in self.crashes.most_common(30)},
            "slow": self.hangs[:20], "large": self.memory[:20], "printed_controls": self.noisy[:20],
        }  # fmt: skip

    def add(self, index: int, row: dict[str, Any]) -> None:
        """Take in what the child said of an input."""
        self.inputs += 1
        if row.get("error"):
            self.crashes[row["error"]] += 1
            self.examples.setdefault(row["error"], index)
        if row["seconds"] > SLOW_S:
            self.hangs.append(index)
        if row["mb"] > MEMORY_MB:
            self.memory.append(index)
        self.controls += row["controls"]
        if row["controls"]:
            self.noisy.append(index)
        self.slowest = max(self.slowest, (row["seconds"], index))
        self.peak_mb = max(self.peak_mb, row["mb"])


def run(target: str, count: int, seed: int, first: int = 0) -> Tally:
    """Try ``count`` inputs of a target; input ``i`` depends on the seed, the target and ``i`` alone."""
    warm()
    tally, began, index = Tally(), time.perf_counter(), first
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        while index < first + count:
            index = _batch(target, index, first + count, seed, Path(place) / "input", tally)
    tally.seconds = time.perf_counter() - began
    return tally


def prepare(target: str, index: int, seed: int, place: Path) -> int:
    """Make one input in a folder and run the command on it."""
    with emptied(place):
        return TARGETS[target](place, random.Random(f"{seed}/{target}/{index}"))


def _batch(target: str, index: int, end: int, seed: int, place: Path, tally: Tally) -> int:
    """Run inputs in a child until they are done or it dies; return the next one."""
    out, into = os.pipe()
    child = os.fork()
    if not child:
        os.close(out)
        _child(target, index, end, seed, place, into)
    os.close(into)
    lines, rest = 0, b""
    while True:
        ready, _, _ = select.select([out], [], [], KILL_S)
        data = os.read(out, 1 << 16) if ready else b""
        if not data:
            break
        *rows, rest = (rest + data).split(b"\n")
        for row in rows:
            tally.add(index + lines, json.loads(row))
            lines += 1
    os.close(out)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    index += lines
    if index < end:
        if not ready:
            tally.add(index, {"seconds": KILL_S, "mb": 0.0, "controls": 0})
        elif lines and os.WIFEXITED(status):
            return index  # a child that has grown gives way to a fresh one
        else:
            tally.add(index, {"error": f"the process died ({status})", "seconds": 0.0, "mb": 0.0, "controls": 0})
        index += 1
    return index


def _child(target: str, index: int, end: int, seed: int, place: Path, into: int) -> None:
    idle = _resident_mb()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ((MEMORY_MB + 1500) << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for at in range(index, end):
        row: dict[str, Any] = {"controls": 0}
        began = time.process_time()
        try:
            row["controls"] = prepare(target, at, seed, place)
        except Exception as error:
            row["error"] = _where(error)
        row["seconds"] = time.process_time() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - idle
        row["mb"] = peak
        os.write(into, json.dumps(row).encode() + b"\n")
        if peak > MEMORY_MB:  # the mark never falls again: a fresh child for the rest
            break
    shutil.rmtree(place, ignore_errors=True)
    os._exit(0)


def _resident_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _where(error: BaseException) -> str:
    cause = error.__cause__ if isinstance(error, CrashError) and error.__cause__ is not None else error
    frames = [f for f in traceback.extract_tb(cause.__traceback__) if "levelhead" in f.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"{type(cause).__name__} at {place}: {str(cause)[:80]!r}"
