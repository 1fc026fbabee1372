"""One process a run folder: a lock that the kernel lets go of with its process, and a file that says who holds it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from levelhead.errors import InputError
from levelhead.message import Message
from levelhead.records import Event

FILE = "run.lock"
"""Name of the file in a run's folder that says who holds it."""
GUARD = ".run.lock.held"
"""Name of the locked file beside it."""
TAKEN_OVER = "lock-taken-over"
"""Code of the event that a run's folder was still marked by a process that is gone."""
GONE = Message(
    "the folder was still locked by process {pid} on {host}, since {since}, which is gone; its lock was taken over",
    "文件夹仍被已不存在的进程 {pid}（主机 {host}，始于 {since}）锁定；已接管它的锁",
)


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a folder.

    Attributes:
        pid: Its number.
        host: Name of its machine.
        since: When it took the folder, in UTC.
    """

    pid: int
    host: str
    since: str = ""

    @classmethod
    def me(cls) -> Holder:
        """Return this process, since now: what a lock's file says of who holds it."""
        return cls(os.getpid(), socket.gethostname(), datetime.now(UTC).isoformat(timespec="seconds"))

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


class RunLock:
    """The lock of a run's folder, held until :meth:`release` or the end of the process.

    Args:
        folder: Folder of the run; it must exist.

    Attributes:
        taken_from: The process that held it and is gone, if one did.

    Raises:
        InputError: Another process holds it, or did so on another machine, where nobody can tell whether it lives.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._lock = FileLock(folder / GUARD, timeout=0)
        try:
            self._lock.acquire()
        except Timeout:
            raise _held(folder) from None
        except OSError as error:
            raise InputError(f"{self._path}: cannot be written: {error.strerror or error}") from None
        with contextlib.ExitStack() as failing:
            failing.callback(self._lock.release)
            self.taken_from = _left(folder)
            self._path.write_text(json.dumps(asdict(Holder.me()), indent=1) + "\n", encoding="utf-8")
            failing.pop_all()

    def release(self) -> None:
        """Let another process take the lock, and remove the file that names this one; again, do nothing."""
        if self._lock.is_locked:
            self._path.unlink(missing_ok=True)
            self._lock.release()

    def events(self) -> list[Event]:
        """Return what is to be reported of how the lock was taken."""
        if self.taken_from is None:
            return []
        gone = self.taken_from
        return [Event(0, TAKEN_OVER, "info", GONE(**asdict(gone)), None, asdict(gone))]


def refuse_held(folder: Path) -> None:
    """Refuse a folder that a living process holds.

    Raises:
        InputError: It is held, or it cannot be told.
    """
    if not (folder / FILE).exists():
        return
    lock = FileLock(folder / GUARD, timeout=0)
    try:
        with lock:
            _left(folder)
    except Timeout:
        raise _held(folder) from None


def _left(folder: Path) -> Holder | None:
    """The process that a free folder is still marked by, if one is.

    Raises:
        InputError: It ran on another machine, which may not see the lock, or the mark cannot be read.
    """
    try:
        holder = _read(folder / FILE)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError):
        raise InputError(f"{folder / FILE}: cannot be read; if no run is going on in {folder}, delete it") from None
    if holder.host != socket.gethostname():
        raise InputError(
            f"{folder}: a run is going on here ({holder}), or was when that machine stopped; "
            f"if it is gone, delete {folder / FILE}"
        )
    return holder


def _held(folder: Path) -> InputError:
    try:
        who = f" ({_read(folder / FILE)})"
    except (OSError, ValueError, LookupError, TypeError):  # it has just been taken
        who = ""
    return InputError(f"{folder}: a run is going on here{who}; wait for its end, or stop it first")


def _read(path: Path) -> Holder:
    """Read who holds a folder.

    Raises:
        OSError: There is no such file, or not for us to read.
        ValueError, LookupError, TypeError: It says nobody.
    """
    saved = json.loads(path.read_text(encoding="utf-8"))
    pid = int(saved["pid"])
    if not 0 < pid < 2**31:
        raise ValueError(f"{pid} is no process")
    return Holder(pid, str(saved["host"]), str(saved["since"]))
