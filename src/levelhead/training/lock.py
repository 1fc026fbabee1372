"""One process a run folder: a lock file that says who holds it, and that outlives nobody."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from levelhead.errors import InputError
from levelhead.records import Event

FILE = "run.lock"
"""Name of the lock in a run's folder."""

TAKEN_OVER = "lock-taken-over"
"""Code of the event that a run's folder was still locked by a process that is gone."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock.

    Attributes:
        pid: Its number.
        host: Name of its machine.
        boot: Which boot of that machine, where the system tells.
        space: Which set of process numbers, where the system tells (containers have their own).
        started: When it started, in clock ticks since the boot, where the system tells.
        since: When it took the lock, in UTC.
    """

    pid: int
    host: str
    boot: str = ""
    space: str = ""
    started: int = 0
    since: str = ""

    @classmethod
    def me(cls) -> Holder:
        """Return this process."""
        pid = os.getpid()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(pid, socket.gethostname(), _boot(), _space(), _started(pid), now)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


class RunLock:
    """The lock of a run's folder, held until :meth:`release`.

    Args:
        folder: Folder of the run; it must exist.

    Attributes:
        taken_from: The process that held it and is gone, if one did.

    Raises:
        InputError: Another process holds it, or it cannot be told whether that process lives.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._me = Holder.me()
        self._file: int | None = None
        self.taken_from: Holder | None = None
        try:
            with _alone(folder):
                self._take()
        except OSError as error:
            raise InputError(f"{self._path}: cannot be written: {error.strerror or error}") from None

    def release(self) -> None:
        """Let go; another process's lock is left alone."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            if _read(self._path) == self._me:
                self._path.unlink()
        os.close(self._file)
        self._file = None

    def events(self) -> list[Event]:
        """Return what is to be told of how the lock was taken."""
        if self.taken_from is None:
            return []
        gone = self.taken_from
        text = f"the folder was still locked by {gone}, which is gone; its lock was taken over"
        return [Event(0, TAKEN_OVER, "info", text, None, asdict(gone))]

    def _take(self) -> None:
        if self._path.exists():
            refuse_held(self._path.parent)
            self.taken_from = _read(self._path)
            self._path.unlink()
        for left in self._path.parent.glob(f".{FILE}.*.tmp"):
            left.unlink()
        draft = self._path.with_name(f".{FILE}.{self._me.pid}.tmp")
        draft.write_text(json.dumps(asdict(self._me), indent=1) + "\n", encoding="utf-8")
        try:
            try:
                os.link(draft, self._path)  # appears whole, and fails where there is one
            except FileExistsError:
                refuse_held(self._path.parent)
                raise
            except OSError:  # a file system without hard links
                with self._path.open("x", encoding="utf-8") as file:
                    file.write(draft.read_text(encoding="utf-8"))
        finally:
            draft.unlink()
        self._file = os.open(self._path, os.O_RDWR)
        with contextlib.suppress(OSError):  # what other sets of process numbers on this machine can see
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def refuse_held(folder: Path) -> None:
    """Refuse a folder that a living process holds.

    Raises:
        InputError: It is held, or it cannot be told.
    """
    path = folder / FILE
    try:
        holder = _read(path)
    except FileNotFoundError:
        return
    except (OSError, ValueError, LookupError, TypeError):
        raise InputError(f"{path}: cannot be read; if no run is going on in {folder}, delete it") from None
    here = Holder.me()
    if holder.host != here.host:
        raise InputError(
            f"{folder}: a run is going on here ({holder}), or was when that machine stopped; "
            f"if it is gone, delete {path}"
        )
    if _lives(holder, here, path):
        raise InputError(f"{folder}: a run is going on here ({holder}); wait for its end, or stop it first")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Inside, no other process of this machine takes the lock of the same folder."""
    number = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def _lives(holder: Holder, here: Holder, path: Path) -> bool:
    """Whether the holder of a lock on this machine is still there."""
    if holder.boot != here.boot:
        return False
    if holder.space != here.space:  # its number means nothing here, but the kernel is the same
        return _is_flocked(path)
    if holder.pid == here.pid and holder.started == here.started:
        return True
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return holder.started == _started(holder.pid)


def _is_flocked(path: Path) -> bool:
    number = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(number)
    return False


def _read(path: Path) -> Holder:
    """Read a lock.

    Raises:
        OSError: It is not there, or not for us to read.
        ValueError, LookupError, TypeError: It is no lock.
    """
    saved = json.loads(path.read_text(encoding="utf-8"))
    pid, started = int(saved["pid"]), int(saved["started"])
    if not 0 < pid < 2**31:
        raise ValueError(f"{pid} is no process")
    texts = {name: str(saved[name]) for name in ("host", "boot", "space", "since")}
    return Holder(pid, started=started, **texts)


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _space() -> str:
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""


def _started(pid: int) -> int:
    """Clock ticks since the boot at which a process started (proc(5), stat, field 22); 0 where nothing tells.

    A process that has ended and was not waited for yet counts as gone: -1.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return -1 if fields[0] in ("Z", "X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return 0
