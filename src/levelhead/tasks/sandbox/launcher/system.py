"""What the launcher asks of the kernel through the C library, and what it tells the trainer."""

from __future__ import annotations

import ctypes
import json
import os
import signal
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
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields[int(entry.parent.name)] = entry.read_text(errors="replace").rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
    return fields


def report(config: Config, line: dict[str, Any]) -> None:
    """Tell the trainer something, as a line of JSON."""
    os.write(config["status"], (json.dumps(line) + "\n").encode())


def refuse(config: Config, why: str) -> NoReturn:
    """Tell the trainer why the program is not run, and end."""
    report(config, {"refused": why})
    os._exit(126)
