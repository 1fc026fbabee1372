"""What both workers share: commands on stdin, one JSON line each on stdout, and the process's peak memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
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
    """Adds up the seconds that wrapped methods take; time inside a nested one counts for the inner alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._stack: list[float] = []

    def wrap(self, owner: Any, method: str, name: str) -> None:
        inner = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            return self.time(name, lambda: inner(*args, **kwargs))

        setattr(owner, method, timed)

    def time(self, name: str, call: Callable[[], Any]) -> Any:
        start = perf_counter()
        self._stack.append(0.0)
        try:
            return call()
        finally:
            total = perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + total - self._stack.pop()
            if self._stack:
                self._stack[-1] += total

    def take(self) -> dict[str, float]:
        """Return the sums since the last call."""
        found, self.seconds = self.seconds, {}
        return found
