"""No browser outlives its trainer: who started which browser is on record, and orphans are ended at the next start.

A browser normally ends with its trainer: Playwright's driver sees the pipe break and ends it, even where the trainer
is killed.  Where that fails (a hung browser, a driver killed with the trainer), the record remains, and the next start
of any trainer of this user ends the process group.  A process id alone proves nothing, as ids are used again, so every
process is known by its id and its time of start.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """A process that cannot be taken for another one that is given the same id later.

    Attributes:
        pid: Process id.
        started: Time of start, in the system's own terms.
    """

    pid: int
    started: str

    @classmethod
    def find(cls, pid: int) -> Process | None:
        """Return the living process of this id; ``None`` if there is none, or only its remains (a zombie)."""
        state_and_start = _state_and_start(pid)
        if state_and_start is None or state_and_start[0] == "Z":
            return None
        return cls(pid, state_and_start[1])

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return Process.find(self.pid) == self

    def kill(self) -> bool:
        """End the process, and its group where it leads one of its own; return whether it was alive."""
        if not self.alive:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGKILL)
        return True


@dataclass(frozen=True, slots=True)
class BrowserRecord:
    """A running browser and who is responsible for it.

    Attributes:
        owner: The trainer.
        browser: The browser's main process, which leads its group.
        driver: Playwright's driver, the parent of the browser.
    """

    owner: Process
    browser: Process
    driver: Process | None

    def end(self) -> bool:
        """End the driver and the browser with all its processes; return whether any was alive."""
        killed = [process.kill() for process in (self.driver, self.browser) if process is not None]
        return any(killed)

    def write(self, folder: Path) -> Path:
        """Put the record on disk and return its path."""
        path = folder / f"{self.browser.pid}.json"
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def read(cls, path: Path) -> BrowserRecord:
        """Read the record of a browser's processes.

        Raises:
            ValueError: The file is not a record.
        """
        try:
            raw = json.loads(path.read_text())
            driver = None if raw["driver"] is None else _process(raw["driver"])
            return cls(_process(raw["owner"]), _process(raw["browser"]), driver)
        except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is not a browser record: {error}") from error


def records_folder() -> Path:
    """Return this user's folder of records, made if need be and closed to all others.

    Raises:
        OSError: The folder belongs to somebody else: its records would tell us whom to kill.
    """
    folder = Path(tempfile.gettempdir()) / f"levelhead-browsers-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if about.st_uid != os.getuid() or not folder.is_dir() or folder.is_symlink() or about.st_mode & 0o022:
        raise OSError(f"{folder} is not a private folder of this user; remove it")
    return folder


def end_leftovers(folder: Path) -> list[int]:
    """End every recorded browser whose owner is gone, and forget its record; return the ids of those still alive."""
    ended = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = BrowserRecord.read(path)
        except ValueError:
            path.unlink(missing_ok=True)
            continue
        if record.owner.alive:
            continue
        if record.end():
            ended.append(record.browser.pid)
        path.unlink(missing_ok=True)
    return ended


def parent_of(pid: int) -> int | None:
    """Return the id of a process's parent."""
    stat = _linux_stat(pid)
    if stat is not None:
        return int(stat[1])
    shown = _ps(pid, "ppid=")
    return int(shown) if shown.isdigit() else None


def _process(raw: dict[str, str]) -> Process:
    return Process(int(raw["pid"]), str(raw["started"]))


def _state_and_start(pid: int) -> tuple[str, str] | None:
    stat = _linux_stat(pid)
    if stat is not None:
        return stat[0], stat[19]
    shown = _ps(pid, "state=,lstart=")
    state, _, started = shown.partition(" ")
    return (state[:1], started.strip()) if state else None


def _linux_stat(pid: int) -> list[str] | None:
    """Fields of ``/proc/PID/stat`` from the third (the state) on; the second may hold spaces and parentheses."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None


def _ps(pid: int, columns: str) -> str:
    if Path("/proc/self/stat").exists():
        return ""
    command = ["/bin/ps", "-o", columns, "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
