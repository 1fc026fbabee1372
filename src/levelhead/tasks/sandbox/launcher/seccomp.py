"""The system-call filter: a small assembler for the kernel's classic BPF, and the filter that it assembles."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from . import calls

_LOAD, _AND = 0x20, 0x54
_EQUAL, _AT_LEAST, _ANY_BIT, _GIVE = 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _EACCES, _ENOTTY, _ENOSYS = 1, 13, 25, 38
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_X32 = 0x40000000
_NAMESPACES = 0x7E020000
_PR_SET_DUMPABLE = 4
_SOCKET_TYPE, _SOCK_STREAM = 0xF, 1
_O_TRUNC, _O_ACCMODE = 0o1000, 0o3
# Set an owner of signals, or which signal it gets: a way to send SIGKILL without kill.
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
# Of a terminal its settings and size, of a descriptor the bytes at hand, and whether it blocks or is inherited.
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)


class Step(NamedTuple):
    """One instruction: an operation, how far to jump where a comparison holds and where not, and a constant."""

    operation: int
    if_true: int
    if_false: int
    constant: int


class Sharing(NamedTuple):
    """What a program shares with its user, which says how much the filter must refuse.

    Attributes:
        files: It sees the user's file system.
        processes: It sees the user's processes.
        signals: Nothing but this filter keeps its signals from them.
        truncation: Nothing but this filter keeps it from emptying files that it may only read.
    """

    files: bool = False
    processes: bool = False
    signals: bool = False
    truncation: bool = False


def supported() -> bool:
    """Return whether the filter knows the numbers of this machine's system calls."""
    return sys.platform == "linux" and platform.machine() in calls.AUDIT


def assemble(sharing: Sharing, machine: str, pid: int) -> list[Step]:
    """Return the filter's instructions for a program that is process ``pid`` of a machine.

    Each rule compares the number of the call, and ends in a verdict where it is the one: a jump never leaves its rule.
    """
    column = list(calls.AUDIT).index(machine)
    refused = dict(calls.ALWAYS)
    if sharing.files:
        refused |= calls.SHARED_FILES
    if sharing.processes:
        refused |= calls.SHARED_PROCESSES
    steps = [
        Step(_LOAD, 0, 0, _MACHINE_AT),
        Step(_EQUAL, 1, 0, calls.AUDIT[machine]),
        Step(_GIVE, 0, 0, _KILL),
        Step(_LOAD, 0, 0, _NUMBER_AT),
        *_rule(_AT_LEAST, _X32, [_refuse(_EACCES)]),
        *_rule(_AT_LEAST, calls.NEWEST + 1, [_refuse(_ENOSYS)]),
    ]
    for name, numbers in refused.items():
        error = _EACCES if name == "socket" else _EPERM
        steps += _rule(_EQUAL, numbers[column], [_refuse(error)])
    for numbers in calls.UNKNOWN.values():
        steps += _rule(_EQUAL, numbers[column], [_refuse(_ENOSYS)])
    for name, body in _judged(sharing, pid).items():
        steps += _rule(_EQUAL, calls.ARGUMENTS[name][column], body)
    return [*steps, Step(_GIVE, 0, 0, _ALLOW)]


def install(sharing: Sharing) -> None:
    """Put this process, and all that it starts, behind the filter, for good; new privileges must be ruled out.

    Raises:
        OSError: The kernel takes no filters, or the machine is one that the filter does not know.
    """
    if not supported():
        raise OSError(_ENOSYS, f"no system-call filter for {platform.machine()}")
    steps = assemble(sharing, platform.machine(), os.getpid())
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the system takes no system-call filter ({os.strerror(number)})")


def _judged(sharing: Sharing, pid: int) -> Mapping[str, list[Step]]:
    own = (0, pid)
    bodies = {
        "clone": [_argument(0), Step(_ANY_BIT, 0, 1, _NAMESPACES), _refuse(_EPERM), _allow()],
        # A pair of datagram sockets can send anywhere; a pair of streams only to each other.
        "socketpair": [
            _argument(1),
            Step(_AND, 0, 0, _SOCKET_TYPE),
            Step(_EQUAL, 0, 1, _SOCK_STREAM),
            _allow(),
            _refuse(_EACCES),
        ],
        "prlimit64": _only(0, own, _EPERM),
        "sched_setaffinity": _only(0, own, _EPERM),
        "setpriority": _setpriority(),
        "ioctl": _only(1, _IOCTLS, _ENOTTY),
        "fcntl": _never(1, (_F_SETOWN, _F_SETSIG, _F_SETOWN_EX), _EPERM),
        "prctl": _never(0, (_PR_SET_DUMPABLE,), _EPERM),
    }
    if sharing.signals:
        bodies |= {"kill": _only(0, own, _EPERM), "tgkill": _only(0, (pid,), _EPERM), "tkill": _only(0, (pid,), _EPERM)}
    if sharing.truncation:
        # Opening for reading only, and emptying all the same.
        for name, flags in (("open", 1), ("openat", 2)):
            emptying = [Step(_AND, 0, 0, _O_TRUNC | _O_ACCMODE), Step(_EQUAL, 0, 1, _O_TRUNC), _refuse(_EPERM)]
            bodies[name] = [_argument(flags), *emptying, _allow()]
        bodies["truncate"] = [_refuse(_EPERM)]
    return bodies


def _setpriority() -> list[Step]:
    """Allow it for one process (0) that is the caller (0)."""
    body = []
    for position in (0, 1):
        body += [_argument(position), Step(_EQUAL, 1, 0, 0), _refuse(_EPERM)]
    return [*body, _allow()]


def _rule(comparison: int, number: int, body: list[Step]) -> list[Step]:
    return [] if number < 0 else [Step(comparison, 0, len(body), number), *body]


def _only(position: int, values: Iterable[int], error: int) -> list[Step]:
    """Allow where an argument has one of these values, and refuse otherwise."""
    compared = [step for value in values for step in (Step(_EQUAL, 0, 1, value), _allow())]
    return [_argument(position), *compared, _refuse(error)]


def _never(position: int, values: Iterable[int], error: int) -> list[Step]:
    """Refuse where an argument has one of these values, and allow otherwise."""
    compared = [step for value in values for step in (Step(_EQUAL, 0, 1, value), _refuse(error))]
    return [_argument(position), *compared, _allow()]


def _argument(position: int) -> Step:
    # The low half, on machines that put it first: the kernel looks at no more of a number that is an int.
    return Step(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * position)


def _allow() -> Step:
    return Step(_GIVE, 0, 0, _ALLOW)


def _refuse(error: int) -> Step:
    return Step(_GIVE, 0, 0, _ERROR | error)
