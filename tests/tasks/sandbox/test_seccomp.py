"""The system-call filter says what its tables say, on both machines: it is run here, instruction by instruction."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from levelhead.tasks.sandbox.launcher import calls, seccomp
from levelhead.tasks.sandbox.launcher.seccomp import Sharing, Step

PID = 4242
EVERYTHING = Sharing(files=True, processes=True, signals=True, truncation=True)
ALLOWED, KILLED = "allowed", "killed"
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
BY_NAME = {
    **calls.ALWAYS,
    **calls.UNKNOWN,
    **calls.SHARED_FILES,
    **calls.SHARED_PROCESSES,
    **calls.ARGUMENTS,
}


def run(steps: list[Step], words: dict[int, int]) -> str | int:
    """Run a filter on the 32-bit words of a call's data, by their place; return its verdict, or the error it gives."""
    at = accumulator = 0
    while True:
        operation, if_true, if_false, constant = steps[at]
        at += 1
        if operation == 0x20:
            accumulator = words.get(constant, 0)
        elif operation == 0x54:
            accumulator &= constant
        elif operation in (0x15, 0x35, 0x45):
            holds = {0x15: accumulator == constant, 0x35: accumulator >= constant, 0x45: bool(accumulator & constant)}
            at += if_true if holds[operation] else if_false
        elif operation == 0x06:
            verdicts = {0x7FFF0000: ALLOWED, 0x80000000: KILLED}
            return verdicts.get(constant, constant & 0xFFFF)
        else:
            raise AssertionError(f"no such operation: {operation:#x}")


def verdict(
    name: str | int, *arguments: int, machine: str = "x86_64", sharing: Sharing = EVERYTHING, audit: int | None = None
) -> str | int:
    number = name if isinstance(name, int) else BY_NAME[name][list(calls.AUDIT).index(machine)]
    words = {0: number, 4: calls.AUDIT[machine] if audit is None else audit}
    words |= {16 + 8 * place: argument & 0xFFFFFFFF for place, argument in enumerate(arguments)}
    return run(seccomp.assemble(sharing, machine, PID), words)


MACHINES = pytest.mark.parametrize("machine", list(calls.AUDIT))


@MACHINES
def test_a_call_by_the_table_of_another_machine_kills(machine: str) -> None:
    assert verdict(0, machine=machine, audit=0x40000003) == KILLED


@MACHINES
def test_calls_that_every_program_needs_are_allowed(machine: str) -> None:
    # read, write, close, mmap, brk, execve, exit_group, futex
    numbers = {"x86_64": (0, 1, 3, 9, 12, 59, 231, 202), "aarch64": (63, 64, 57, 222, 214, 221, 94, 98)}[machine]
    assert {verdict(number, machine=machine) for number in numbers} == {ALLOWED}


@MACHINES
def test_every_call_of_the_tables_is_refused(machine: str) -> None:
    column = list(calls.AUDIT).index(machine)
    refused = {**calls.ALWAYS, **calls.SHARED_FILES, **calls.SHARED_PROCESSES}
    for name, numbers in refused.items():
        if numbers[column] >= 0:
            assert verdict(name, machine=machine) in (1, 13), name
    assert {verdict(name, machine=machine) for name in calls.UNKNOWN} == {38}


@MACHINES
def test_what_is_shared_with_nobody_is_the_programs_own(machine: str) -> None:
    for name in ("fchmod", "utimensat", "setsid", "kill", "openat"):
        assert verdict(name, 99, 99, 0o1000, machine=machine, sharing=Sharing()) == ALLOWED, name


@MACHINES
def test_calls_that_nobody_looked_at_are_unknown(machine: str) -> None:
    assert verdict(calls.NEWEST + 1, machine=machine) == 38
    assert verdict(0x3FFFFFFF, machine=machine) == 38
    assert verdict(0x40000000 + 41, machine=machine) == 13


@MACHINES
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("clone", (0x01200011,), ALLOWED),  # fork
        ("clone", (0x003D0F00,), ALLOWED),  # a thread
        ("clone", (0x10000011,), 1),  # with a user namespace
        ("clone", (0x40000011,), 1),  # with a network namespace
        ("socketpair", (1, 0x80001), ALLOWED),
        ("socketpair", (1, 0x80002), 13),
        ("kill", (PID, 9), ALLOWED),
        ("kill", (0, 9), ALLOWED),
        ("kill", (-1, 9), 1),
        ("kill", (1, 9), 1),
        ("kill", (-PID, 9), 1),
        ("tgkill", (PID, PID, 6), ALLOWED),
        ("tgkill", (1, 1, 6), 1),
        ("tkill", (1, 6), 1),
        ("prlimit64", (0, 7), ALLOWED),
        ("prlimit64", (1, 7), 1),
        ("sched_setaffinity", (0,), ALLOWED),
        ("sched_setaffinity", (1,), 1),
        ("setpriority", (0, 0), ALLOWED),
        ("setpriority", (0, 1), 1),
        ("setpriority", (2, 0), 1),
        ("ioctl", (1, 0x5401), ALLOWED),  # is this a terminal?
        ("ioctl", (1, 0x5412), 25),  # type into it
        ("fcntl", (3, 2), ALLOWED),
        ("fcntl", (3, 8), 1),
        ("fcntl", (3, 10), 1),
        ("prctl", (4, 0), 1),
        ("prctl", (15, 0), ALLOWED),
        ("openat", (-100, 0, 0o0), ALLOWED),
        ("openat", (-100, 0, 0o1001), ALLOWED),  # to write, which Landlock judges
        ("openat", (-100, 0, 0o1000), 1),
        ("truncate", (0, 0), 1),
    ],
)
def test_calls_are_judged_by_their_arguments(
    machine: str, name: str, arguments: tuple[int, ...], expected: str | int
) -> None:
    assert verdict(name, *arguments, machine=machine) == expected


@MACHINES
def test_the_tables_are_the_kernels(machine: str) -> None:
    header = HEADERS[machine]
    if not header.exists():
        pytest.skip(f"there is no {header} here")
    text = header.read_text()
    numbers = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\b", text))
    wrong = {
        name: (mine, numbers[name])
        for name, pair in BY_NAME.items()
        if (mine := pair[list(calls.AUDIT).index(machine)]) >= 0 and name in numbers and mine != int(numbers[name])
    }
    assert not wrong
    assert len(set(BY_NAME) & set(numbers)) > 90


def test_no_two_calls_have_one_number() -> None:
    for column in range(2):
        numbers = [pair[column] for pair in BY_NAME.values() if pair[column] >= 0]
        assert len(numbers) == len(set(numbers))
