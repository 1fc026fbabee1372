r"""Whether two answers are the same mathematics: read and compared by math-verify, in a child process.

The child has a limit on processor time, so that whether a comparison ends depends on the machine's speed but not on
what else it does; it has a limit on memory, and a limit on the clock ends it where nothing else does.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import selectors
import subprocess
import sys
import threading
import time
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from levelhead.errors import InputError
from levelhead.installation import install_command
from levelhead.recipe.workflow import SandboxLimits
from levelhead.tasks.datasets.base import Example, Verdict
from levelhead.tasks.stated import boxed, parse_number, stated

CPU_S = 3.0
"""Processor seconds of one comparison."""
WALL_S = 60.0
"""Seconds after which a child that does not answer is ended."""
_START_S = 120.0
_LONGEST = 1000
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from levelhead.tasks.datasets.worker import main; main()"
_ROOT = Path(__file__).resolve().parents[3]
_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]+)?(?:/[0-9]+)?|\\[dt]?frac\{[0-9]+\}\{[0-9]+\})")
_SPACE = re.compile(r"\\[,;:! ]|[\s$]|\\(?:left|right)(?![a-zA-Z])")


def check_math(example: Example, text: str, limits: SandboxLimits | None = None) -> Verdict:  # noqa: ARG001
    r"""Judge a mathematical answer: right where it equals a reference.

    The answer stands in the last ``\boxed{}``, after ``####`` or after "the answer is"; anything else states none.

    Raises:
        InputError: math-verify is not installed.
    """
    answer = boxed(text) or stated(text, lines=False)
    if not answer:
        return Verdict(right=False, score=0.0, stated=None, note="no answer in a box")
    notes = []
    for spans in example.answers:
        same, note = equal(answer, spans[0])
        if same:
            return Verdict(right=True, score=1.0, stated=answer)
        notes.append(note)
    return Verdict(right=False, score=0.0, stated=answer, note=next(filter(None, notes), ""))


@lru_cache(maxsize=8192)
def equal(answer: str, reference: str) -> tuple[bool, str]:
    """Return whether two answers are equal, and why it could not be told.

    Equal texts are, and plain numbers and fractions are compared exactly here; anything else in the child.
    """
    if _SPACE.sub("", answer) == _SPACE.sub("", reference):
        return True, ""
    if max(len(answer), len(reference)) > _LONGEST:
        return False, f"an answer of more than {_LONGEST} characters"
    if _NUMBER.fullmatch(answer.strip()) and _NUMBER.fullmatch(reference.strip()):
        return parse_number(answer) == parse_number(reference) is not None, ""
    return _child().compare(answer, reference)


class Comparer:
    """The child process that compares; it is started when first needed and again where it was ended."""

    def __init__(self, cpu_s: float = CPU_S, wall_s: float = WALL_S) -> None:
        """Set the limits of one comparison."""
        self._limits = (cpu_s, wall_s)
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def compare(self, answer: str, reference: str) -> tuple[bool, str]:
        """Return whether two answers are equal, and why it could not be told."""
        with self._lock:
            try:
                process = self._running()
                reply = self._ask(process, json.dumps([answer, reference]), self._limits[1])
            except (OSError, TimeoutError):
                self._end()
                return False, "the comparison took too long"
        return reply == "equal", "" if reply in ("equal", "different") else reply

    def close(self) -> None:
        """End the child process, if one runs."""
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is not None and process.poll() is None and self._owner == os.getpid():
            return process
        self._process = subprocess.Popen(  # noqa: S603 - our own program, no shell
            [sys.executable, "-c", _BOOT, str(_ROOT), str(self._limits[0])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._owner = os.getpid()
        self._ask(self._process, json.dumps(["1", "1"]), _START_S)  # importing math-verify is no part of a comparison
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], line: str, patience_s: float) -> str:
        if process.stdin is None or process.stdout is None:
            raise OSError("no pipes")
        process.stdin.write(line.encode() + b"\n")
        process.stdin.flush()
        deadline, reply = time.monotonic() + patience_s, b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not reply.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError
                chunk = os.read(process.stdout.fileno(), 4096)
                if not chunk:
                    raise OSError("the child ended")
                reply += chunk
        return reply.decode().strip()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue


@lru_cache(maxsize=1)
def _child() -> Comparer:
    if find_spec("math_verify") is None:
        raise InputError(f"comparing mathematics needs math-verify, which is not installed; {install_command('math')}")
    child = Comparer()
    atexit.register(child.close)
    return child
