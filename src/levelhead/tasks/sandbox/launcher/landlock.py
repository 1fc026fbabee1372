"""Landlock: the kernel's own wall for unprivileged processes, from Linux 5.13 on."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from . import calls

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
REMOVE, MAKE_DIR, MAKE_REG, MAKE_FIFO, MAKE_SYM = 48, 128, 256, 1024, 4096
REFER, TRUNCATE = 8192, 16384

READ = EXECUTE | READ_FILE | READ_DIR
CHANGE = READ_FILE | WRITE_FILE | READ_DIR | REMOVE | MAKE_DIR | MAKE_REG | MAKE_FIFO | MAKE_SYM | REFER | TRUNCATE
USE = READ_FILE | WRITE_FILE
_OF_FILES = EXECUTE | READ_FILE | WRITE_FILE | TRUNCATE

# Kinds of access to files that each version knows, as the number of bits; of later versions the last one.
_FILE_BITS = (13, 14, 15, 15, 16)
_TCP, _SCOPES = 0b11, 0b11
_TRUNCATES_FROM, _TCP_FROM, _SCOPES_FROM = 3, 4, 6

_libc = ctypes.CDLL(None, use_errno=True)


def version(at_most: int = 99) -> int:
    """Return the version of Landlock in this kernel, or ``at_most``; 0 where there is none."""
    return max(0, min(int(_libc.syscall(calls.LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)), at_most))


def holds_signals(of_version: int) -> bool:
    """Return whether a version keeps signals from processes outside."""
    return of_version >= _SCOPES_FROM


def holds_truncation(of_version: int) -> bool:
    """Return whether a version keeps files from being emptied."""
    return of_version >= _TRUNCATES_FROM


def enter(of_version: int, shown: Iterable[str], hidden: Iterable[str], used: Iterable[str], folder: str) -> None:
    """Leave this process, and all that it starts, nothing but these files, for good.

    It also takes from them the memory and environment of processes outside (as ptrace sees them), and from version 6 on
    signals to those.

    Args:
        of_version: What :func:`version` returned.
        shown: Folders and files to read and execute.
        hidden: Folders below them that are not shown.  Their names can still be listed.
        used: Devices to read and write.
        folder: The one place to change.

    Raises:
        OSError: The kernel refuses.
    """
    handled = (1 << _FILE_BITS[min(of_version, len(_FILE_BITS)) - 1]) - 1
    rules = struct.pack("=Q", handled)
    if of_version >= _TCP_FROM:
        rules += struct.pack("=Q", _TCP)
    if of_version >= _SCOPES_FROM:
        rules += struct.pack("=Q", _SCOPES)
    ruleset = _call(
        calls.LANDLOCK_CREATE, ctypes.create_string_buffer(rules, len(rules)), ctypes.c_size_t(len(rules)), 0
    )
    try:
        apart = [Path(place) for place in hidden]
        for place in dict.fromkeys(shown):
            _show(ruleset, Path(place), apart, handled)
        for device in used:
            _grant(ruleset, Path(device), USE, handled)
        _grant(ruleset, Path(folder), CHANGE, handled)
        _call(calls.LANDLOCK_ENTER, ruleset, 0)
    finally:
        os.close(ruleset)


def _show(ruleset: int, place: Path, hidden: list[Path], handled: int) -> None:
    """Grant reading of a folder; where something below is hidden, of everything else in it one by one."""
    try:
        real = place.resolve(strict=True)
    except OSError:
        return
    if not any(real in part.parents for part in hidden):
        _grant(ruleset, real, READ, handled)
        return
    _grant(ruleset, real, READ_DIR, handled)
    for child in real.iterdir():
        # What a link leads to is shown where it lies, or not at all.
        if child not in hidden and not child.is_symlink():
            _show(ruleset, child, hidden, handled)


def _grant(ruleset: int, place: Path, access: int, handled: int) -> None:
    try:
        opened = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        allowed = access & handled & (-1 if place.is_dir() else _OF_FILES)
        rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, opened), 12)
        _call(calls.LANDLOCK_ADD, ruleset, 1, rule, 0)
    finally:
        os.close(opened)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock: {os.strerror(error)}")
    return result
