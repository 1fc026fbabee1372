"""Running a program that a model wrote: never in this process, and within walls and limits."""

from __future__ import annotations

import itertools
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from levelhead.errors import InputError
from levelhead.recipe.workflow import SandboxLimits

log = logging.getLogger(__name__)

Status = Literal["ok", "error", "timeout", "memory", "output", "refused"]
Network = Literal["namespace", "filter", "open"]

LONGEST = 1 << 20
"""Bytes of source; a longer program is refused unread."""

_CHILD = Path(__file__).with_name("child.py")
_GRACE_S = 2.0
_numbers = itertools.count(os.getpid())
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How a program ended.

    Attributes:
        status: ``ok`` it ended with 0; ``error`` it ended otherwise; ``timeout``, ``memory``, ``output`` it went over
            the limit of that name; ``refused`` it was never run.
        stdout: What it wrote, up to the limit, decoded with replacement characters.
        stderr: What it wrote there, up to the limit.
        network: What kept it from the network: a namespace of its own and a filter, the filter alone, or nothing.
        own_files: Whether it saw a file system of its own.
        note: Why it was refused, or what could not be built.
    """

    status: Status
    stdout: str = ""
    stderr: str = ""
    network: Network = "open"
    own_files: bool = False
    note: str = ""


def run_program(source: str, limits: SandboxLimits | None = None, *, namespaces: bool = True) -> ProgramResult:
    """Run Python source in the sandbox and wait for its end.

    Args:
        source: The program; it gets no input, no arguments, an empty environment, an empty folder, and the standard
            library alone.
        limits: Bounds on what it may use.
        namespaces: Whether to build namespaces at all; off only to see what the other walls hold.

    Raises:
        InputError: The recipe requires isolation, and the system allows none.
    """
    limits = limits or SandboxLimits()
    if os.name != "posix":
        return ProgramResult("refused", note=f"there is no sandbox for {sys.platform}")
    code = source.encode(errors="replace")
    if len(code) > LONGEST or b"\0" in code:
        return ProgramResult("refused", note=f"a program has at most {LONGEST} bytes, and no zero among them")
    with _started(code, limits, namespaces) as (process, status):
        stdout, stderr, over = _watch(process, limits)
        lines = _lines(status)
    result = _result(lines, stdout, stderr, over)
    _speak(result, limits)
    return result


@contextmanager
def _started(code: bytes, limits: SandboxLimits, namespaces: bool) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start the launcher; on the way out nothing of it is left."""
    read, write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="levelhead-", ignore_cleanup_errors=True) as folder, _source(code) as stdin:
        config = {
            **limits.model_dump(exclude={"wall_s", "output_kb", "isolation"}),
            "required": limits.isolation == "required",
            "namespaces": namespaces,
            "folder": folder,
            "prefix": str(Path(sys.base_prefix).resolve()),
            "python": _interpreter(),
            "status": write,
            "trainer": os.getpid(),
            "number": next(_numbers) % 1_000_000,
        }
        process = subprocess.Popen(  # noqa: S603 - our own launcher, no shell
            [_interpreter(), "-I", "-S", "-B", str(_CHILD), json.dumps(config)],
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
    with tempfile.TemporaryFile(prefix="levelhead-") as file:
        file.write(code)
        file.seek(0)
        yield file.fileno()


def _interpreter() -> str:
    # The interpreter behind a virtual environment: the sandbox shows its folder, and not the environment's.
    return str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())


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
            left = deadline - time.monotonic()
            ready = selector.select(left) if left > 0 else []
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


def _lines(status: int) -> list[Mapping[str, Any]]:
    with os.fdopen(os.dup(status), "rb") as pipe:
        return [json.loads(line) for line in pipe.read(65536).splitlines()]


def _result(lines: list[Mapping[str, Any]], stdout: bytes, stderr: bytes, over: Status | None) -> ProgramResult:
    said: dict[str, Any] = {key: value for line in lines for key, value in line.items()}
    out, err = stdout.decode(errors="replace"), stderr.decode(errors="replace")
    if "refused" in said or "network" not in said:
        return ProgramResult("refused", note=said.get("refused") or f"the launcher failed: {err[-300:].strip()}")
    status: Status = "ok" if said.get("exit") == 0 else "error"
    if over is not None:
        status = over
    elif said.get("signal") in (signal.SIGXCPU, signal.SIGKILL):
        status = "timeout"
    elif status == "error" and err.rstrip().rsplit("\n", 1)[-1].startswith("MemoryError"):
        status = "memory"
    return ProgramResult(status, out, err, said["network"], said["files"], said["why"])


def _speak(result: ProgramResult, limits: SandboxLimits) -> None:
    """Say once what is missing, or refuse to go on where the recipe asks for all of it."""
    if result.status == "refused" and limits.isolation == "required" and result.note:
        raise InputError(
            f"tasks[].sandbox.isolation is 'required', and programs cannot be isolated here: {result.note}\n"
            "allow namespaces (a container needs CAP_SYS_ADMIN or user namespaces), or set it to 'preferred'"
        )
    if result.status != "refused" and not result.own_files and result.note not in _warned:
        _warned.add(result.note)
        network = "no network (system calls are filtered)" if result.network == "filter" else "NETWORK ACCESS"
        log.warning(
            "programs run with limits, but without a file system of their own, and with %s: %s", network, result.note
        )
