"""What both workers share: commands on stdin, one JSON line each on stdout, and the process's peak memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter, process_time
from typing import Any


def memory(key: str) -> int:
    """Bytes of ``VmHWM`` (the peak) or ``VmRSS`` (now) of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"this system does not report {key}")


class Channel:
    """Speaks to ``bench/speed.py``; whatever libraries print goes to stderr."""

    def __init__(self) -> None:
        self._out = sys.stdout
        sys.stdout = sys.stderr

    def send(self, **values: Any) -> None:
        print(json.dumps(values), file=self._out, flush=True)

    def commands(self) -> Iterator[list[str]]:
        for line in sys.stdin:
            yield line.split()


class Clock:
    """Adds up what wrapped methods take, in seconds and, as ``NAME_cpu``, in processor seconds of all threads.

    Time inside a nested one counts for the inner alone.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._stack: list[tuple[float, float]] = []

    def wrap(self, owner: Any, method: str, name: str) -> None:
        inner = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            return self.time(name, lambda: inner(*args, **kwargs))

        setattr(owner, method, timed)

    def time(self, name: str, call: Callable[[], Any]) -> Any:
        start = perf_counter(), process_time()
        self._stack.append((0.0, 0.0))
        try:
            return call()
        finally:
            inner = self._stack.pop()
            total = perf_counter() - start[0], process_time() - start[1]
            for key, whole, part in zip((name, f"{name}_cpu"), total, inner, strict=True):
                self.seconds[key] = self.seconds.get(key, 0.0) + whole - part
            if self._stack:
                above = self._stack[-1]
                self._stack[-1] = above[0] + total[0], above[1] + total[1]

    def take(self) -> dict[str, float]:
        """Return the sums since the last call."""
        seconds, self.seconds = self.seconds, {}
        return seconds
