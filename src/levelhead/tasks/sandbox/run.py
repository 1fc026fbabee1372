"""Running a program that a model wrote: never in this process, and behind walls and limits."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import logging
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from levelhead.errors import InputError
from levelhead.recipe.workflow import SandboxLimits
from levelhead.tasks.sandbox.launcher import BOOT
from levelhead.tasks.sandbox.surroundings import hidden, interpreter, scratch, view

log = logging.getLogger(__name__)

Status = Literal["ok", "error", "timeout", "memory", "output", "files", "refused"]
Network = Literal["namespace", "filter", "open"]
Wall = Literal["bubblewrap", "namespaces", "landlock", "none"]

LONGEST = 1 << 20
"""Bytes of source; a longer program is refused unread."""

WALLS: tuple[Wall, ...] = ("bubblewrap", "namespaces", "landlock")
"""What may stand around a program, the best first."""

_LAUNCHER = Path(__file__).parent
_GRACE_S = 2.0
_numbers = itertools.count(os.getpid())
_said: set[str] = set()


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How a program ended and what it wrote.

    Attributes:
        status: ``ok`` it ended with 0; ``error`` it ended otherwise; ``timeout``, ``memory``, ``output``, ``files`` it
            went over the limit of that name; ``refused`` it was never run.
        stdout: What it wrote, up to the limit, decoded with replacement characters.
        stderr: What it wrote there, up to the limit.
        network: What kept it from the network: a namespace of its own (and a filter), the filter alone, or nothing.
        wall: What kept it from the user's files and processes: namespaces that bubblewrap or the launcher built,
            Landlock with the filter, or nothing.
        note: Why it was refused, or why there is no better wall.
    """

    status: Status
    stdout: str = ""
    stderr: str = ""
    network: Network = "open"
    wall: Wall = "none"
    note: str = ""


def run_program(
    source: str, limits: SandboxLimits | None = None, *, walls: Sequence[Wall] = WALLS, landlock: int = 99
) -> ProgramResult:
    """Run Python source in the sandbox and wait for its end.

    Args:
        source: The program; it gets no input, no arguments, an empty environment, an empty folder, and the standard
            library alone.
        limits: Bounds on what it may use, and whether it may run where there is no wall.
        walls: The walls to try; fewer than all only to see what the others hold.
        landlock: The newest version of Landlock to use; an older one only to see what it holds.

    Raises:
        InputError: The recipe requires isolation, and the system allows none.
    """
    limits = limits or SandboxLimits()
    result = _run(source, limits, _available(tuple(walls)), landlock)
    _speak(result, limits)
    return result


def find_wall(limits: SandboxLimits | None = None) -> ProgramResult:
    """Run an empty program, and so tell which wall programs have here; a process does so once.

    Raises:
        InputError: The recipe requires isolation, and the system allows none; or programs cannot be run here at all.
    """
    limits = limits or SandboxLimits()
    result = _probe(limits.isolation)
    _speak(result, limits)
    if result.status == "refused":
        raise InputError(f"tasks[].sandbox: programs cannot be run here: {result.note}")
    return result


def _run(source: str, limits: SandboxLimits, walls: tuple[Wall, ...], landlock: int) -> ProgramResult:
    if os.name != "posix":
        return ProgramResult("refused", note=f"there is no sandbox for {sys.platform}")
    code = source.encode(errors="replace")
    if len(code) > LONGEST or b"\0" in code:
        return ProgramResult("refused", note=f"a program has at most {LONGEST} bytes, and no zero among them")
    with hidden(), _started(code, limits, walls, landlock) as (process, status):
        stdout, stderr, over = _watch(process, limits)
        lines = _lines(status)
    return _result(lines, stdout, stderr, over)


@functools.cache
def _probe(isolation: Literal["required", "none"]) -> ProgramResult:
    return _run("", SandboxLimits(isolation=isolation, wall_s=60.0), _available(WALLS), 99)


@functools.cache
def _available(walls: tuple[Wall, ...]) -> tuple[Wall, ...]:
    """Return bubblewrap alone where it works, and the other walls where it is absent or the system stops it."""
    others = tuple(wall for wall in walls if wall != "bubblewrap")
    if "bubblewrap" not in walls or _bubblewrap() is None:
        return others
    result = _run("", SandboxLimits(wall_s=60.0), ("bubblewrap",), 0)
    if result.status == "ok":
        return ("bubblewrap",)
    log.info("bubblewrap is installed, but does not work here: %s", result.note)
    return others


def _bubblewrap() -> str | None:
    return shutil.which("bwrap") if sys.platform == "linux" else None


@contextmanager
def _started(
    code: bytes, limits: SandboxLimits, walls: tuple[Wall, ...], landlock: int
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start the launcher; on the way out nothing of it is left."""
    shown, not_shown = view()
    read, write = os.pipe()
    with scratch() as folder, _source(code) as stdin:
        config = {
            **limits.model_dump(exclude={"wall_s", "output_kb", "isolation"}),
            "required": limits.isolation == "required",
            "walls": walls,
            "landlock": landlock,
            "bubblewrap": _bubblewrap(),
            "shown": shown,
            "hidden": not_shown,
            "folder": str(folder),
            "python": interpreter(),
            "status": write,
            "trainer": os.getpid(),
            "number": next(_numbers) % 1_000_000,
        }
        command = [interpreter(), "-I", "-S", "-B", "-c", BOOT, str(_LAUNCHER), json.dumps(config)]
        process = subprocess.Popen(  # noqa: S603 - our own launcher, no shell
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
            cwd="/",
            pass_fds=(write,),
            start_new_session=True,
        )
        os.close(write)
        try:
            yield process, read
        finally:
            _stop(process)
            os.close(read)


@contextmanager
def _source(code: bytes) -> Iterator[int]:
    """Give a descriptor from which the program is read, and which cannot be written to."""
    handle, name = tempfile.mkstemp(prefix="levelhead-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(code)
        stdin = os.open(name, os.O_RDONLY)
    finally:
        Path(name).unlink()
    try:
        yield stdin
    finally:
        os.close(stdin)


def _watch(process: subprocess.Popen[bytes], limits: SandboxLimits) -> tuple[bytes, bytes, Status | None]:
    """Read both outputs until they close, the clock runs out, or there is too much of them."""
    room = limits.output_kb << 10
    held: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
    deadline = time.monotonic() + limits.wall_s
    over: Status | None = None
    with selectors.DefaultSelector() as selector:
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, name)
        while selector.get_map() and over is None:
            remaining = deadline - time.monotonic()
            ready = selector.select(remaining) if remaining > 0 else []
            if not ready:
                over = "timeout"
            for key, _ in ready:
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fileobj)
                held[key.data] += chunk
                if len(held[key.data]) > room:
                    over = "output"
    _stop(process)
    return bytes(held["stdout"][:room]), bytes(held["stderr"][:room]), over


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Have the launcher end everything; where it does not, end it and its group."""
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


_NO_MEMORY = re.compile(r"[\w.]*MemoryError\b|OSError: \[Errno 12\]|.*std::bad_alloc|.*[Cc]annot allocate memory")
"""Last line of what a program that ran into its limit of memory writes, in Python, numpy, C++ or a shell."""


def _lines(status: int) -> list[Mapping[str, Any]]:
    with os.fdopen(os.dup(status), "rb") as pipe:
        return [json.loads(line) for line in pipe.read(65536).splitlines()]


def _result(lines: list[Mapping[str, Any]], stdout: bytes, stderr: bytes, over: Status | None) -> ProgramResult:
    report: dict[str, Any] = {key: value for line in lines for key, value in line.items()}
    out, err = stdout.decode(errors="replace"), stderr.decode(errors="replace")
    if "refused" in report or "network" not in report:
        return ProgramResult("refused", note=report.get("refused") or f"the launcher failed: {err[-300:].strip()}")
    status: Status = "ok" if report.get("exit") == 0 else "error"
    if over is not None:
        status = over
    elif "over" in report:
        status = report["over"]
    elif report.get("signal") in (signal.SIGXCPU, signal.SIGKILL):
        status = "timeout"
    elif status == "error" and _NO_MEMORY.match(err.rstrip().rsplit("\n", 1)[-1]):
        status = "memory"
    return ProgramResult(status, out, err, report["network"], report["wall"], report["why"])


def _speak(result: ProgramResult, limits: SandboxLimits) -> None:
    """Say once which wall there is, or refuse to go on where the recipe asks for one and there is none."""
    if result.status == "refused":
        if limits.isolation == "required" and result.note and not result.note.startswith("a program"):
            raise InputError(
                f"tasks[].sandbox.isolation is 'required', and programs cannot be isolated here: {result.note}; "
                "install bubblewrap, or allow user namespaces or Landlock ('none' runs them with no wall)"
            )
        return
    if result.wall in ("bubblewrap", "namespaces") or result.note in _said:
        return
    _said.add(result.note)
    network = {
        "namespace": "no network",
        "filter": "no network (system calls are filtered)",
        "open": "NETWORK ACCESS",
    }[result.network]
    if result.wall == "landlock":
        log.info("programs run behind Landlock and a system-call filter, with %s: %s", network, result.note)
    else:
        log.warning(
            "isolation is 'none', and programs run with NO WALL, and can read and write what this user can; %s: %s",
            network,
            result.note,
        )


R = TypeVar("R")


class Bench:
    """Runs sandboxed programs in threads, no more at once than there are processors to spare.

    One belongs to one event loop.
    """

    def __init__(self, limits: SandboxLimits | None = None) -> None:
        """Set the limits of every program."""
        self.limits = limits or SandboxLimits()
        self._seats = asyncio.Semaphore(max(1, (os.cpu_count() or 2) - 1))

    async def run(self, function: Callable[..., R], *args: str) -> R:
        """Call ``function(*args, limits)`` in a thread, once there is a seat."""
        async with self._seats:
            return await asyncio.to_thread(function, *args, self.limits)
