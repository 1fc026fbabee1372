"""What the launcher asks of the kernel: limits, another user, space on disk; and what it tells the trainer."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import stat
import sys
from pathlib import Path
from typing import Any, NoReturn

Config = dict[str, Any]

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raise the C library's error where a call did not return 0."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def follow_parent(sent: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends."""
    if LINUX:
        libc.prctl(PR_SET_PDEATHSIG, sent, 0, 0, 0)


def hide() -> None:
    """Close this process's memory and environment to others of the same user, until it becomes another program."""
    if LINUX:
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def statuses() -> dict[int, list[str]]:
    """Return the fields of every process that can be seen, from its state on, by its number."""
    fields = {}
    for process in processes():
        try:
            fields[int(process.name)] = (process / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
    return fields


def processes() -> list[Path]:
    """Return the folders in ``/proc`` of the processes that can be seen; each may be gone when it is looked at."""
    # Not with a pattern for a file in them: looking whether that is there raises where a process has ended meanwhile.
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def report(config: Config, line: dict[str, Any]) -> None:
    """Tell the trainer something, as a line of JSON."""
    os.write(config["status"], (json.dumps(line) + "\n").encode())


def refuse(config: Config, why: str) -> NoReturn:
    """Tell the trainer why the program is not run, and end."""
    report(config, {"refused": why})
    os._exit(126)


def limit(config: Config, own_user: bool, already: int) -> list[str]:
    """Set the kernel's limits for this process and what it starts; return those that the system does not set.

    Args:
        config: The launcher's settings.
        own_user: Whether no other process has this user.
        already: Processes and threads that count against the limit, and are not the program's.
    """
    limits = {
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_FSIZE": config["file_mb"] << 20,
        "RLIMIT_AS": config["memory_mb"] << 20,
        "RLIMIT_NPROC": config["processes"] + (0 if own_user else already),
        "RLIMIT_CPU": config["cpu_s"],
    }
    return [name for name, value in limits.items() if not _limit(name, value)]


def tasks_of_user() -> int:
    """Count the threads that already run as this user: where there is no own namespace, they count too."""
    uid, count = str(os.getuid()), 0
    for process in processes():
        try:
            # Not by whom the folder belongs to: of a process that hides itself, that is root.
            lines = (process / "status").read_text(errors="replace").splitlines()
        except OSError:
            continue
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        if fields.get("Uid", "").split()[:1] == [uid]:
            count += int(fields.get("Threads", "1"))
    return count


def drop_root(config: Config, folder: str | None) -> None:
    """Become a user that no other program has, so that limits and signals concern nobody else.

    Args:
        config: The launcher's settings.
        folder: The program's folder on a disk that others use, which becomes that user's.

    Raises:
        PermissionError: The system does not let root become anybody else, or that user cannot run Python.
    """
    os.setgroups([])
    for uid in (1_000_000 + config["number"], 50_000 + config["number"] % 10_000, 65534):
        try:
            if folder is not None:
                for owned in (folder, str(Path(folder).parent)):
                    os.chown(owned, uid, uid)
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        except OSError:
            continue
        if not os.access(config["python"], os.X_OK):
            raise PermissionError(
                f"without namespaces an unprivileged user must be able to run {config['python']}, and cannot"
            )
        return
    raise PermissionError("the launcher is root and cannot become anybody else")


def over_disk(folder: str, group: int, most_bytes: int, most_files: int) -> bool:
    """Return whether a program's files pass a limit together, those among them that it has deleted and holds open.

    Args:
        folder: Where they lie.
        group: The program's process group; 0 for a file system that bounds bytes itself.
        most_bytes: On disk.
        most_files: Files and folders.
    """
    taken, count, pending = 0, 0, [folder]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    count += 1
                    taken += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except FileNotFoundError:
            continue
        except OSError:
            # A folder that cannot be looked into, or lies too deep: there is no honest need for one.
            return True
        if count > most_files:
            return True
    return taken + (_deleted(group) if group else 0) > most_bytes


def _deleted(group: int) -> int:
    """Return the bytes of files that processes of a group hold open and no folder holds, their input left out."""
    stdin = os.fstat(0)
    sizes = {(stdin.st_dev, stdin.st_ino): 0}
    for pid, fields in statuses().items():
        if int(fields[2]) != group:
            continue
        try:
            held = list(Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            continue
        for entry in held:
            try:
                seen = entry.stat()
            except OSError:
                continue
            if stat.S_ISREG(seen.st_mode) and seen.st_nlink == 0:
                sizes.setdefault((seen.st_dev, seen.st_ino), seen.st_blocks * 512)
    return sum(sizes.values())


def _limit(name: str, value: int) -> bool:
    what = getattr(resource, name, None)
    if what is None:
        return False
    _, hard = resource.getrlimit(what)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        # A second of grace on top of the processor time: its first signal ends a program, and tells why.
        resource.setrlimit(what, (bound, bound + 1 if name == "RLIMIT_CPU" and bound == value else bound))
    except (OSError, ValueError):
        return False
    return True
