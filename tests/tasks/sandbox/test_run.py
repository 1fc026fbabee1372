"""The sandbox holds: a fork bomb, an endless loop, endless output, the home folder, a socket, and more."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from levelhead.tasks.sandbox import ProgramResult, run, run_program
from levelhead.tasks.sandbox.run import Wall
from sandboxed import LIMITS, behind, can_run, descendants, every, needs, program, walled

pytestmark = can_run


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before = descendants()
    yield
    deadline = time.monotonic() + 30
    while descendants() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert descendants() <= before


@every
def test_a_program_runs_and_its_output_comes_back(wall: Wall) -> None:
    result = behind(wall)("import math\nprint(math.comb(10, 3))\nimport sys\nsys.stderr.write('aside')")
    assert (result.status, result.stdout, result.stderr) == ("ok", "120\n", "aside")


def test_a_program_that_fails_says_why() -> None:
    result = program("print('before')\n1 / 0")
    assert result.status == "error"
    assert result.stdout == "before\n"
    assert "ZeroDivisionError" in result.stderr
    assert program("raise SystemExit(3)").status == "error"


def test_a_program_gets_no_input_no_arguments_no_environment_and_an_empty_folder() -> None:
    os.environ["LEVELHEAD_SECRET"] = "do not leak"
    try:
        result = program(
            "import os, sys\nprint(sys.argv[1:], os.listdir('.'), sorted(os.environ))\n"
            "try:\n    input()\nexcept EOFError:\n    print('no input')"
        )
    finally:
        del os.environ["LEVELHEAD_SECRET"]
    # Python itself sets LC_CTYPE where it finds none.
    assert result.stdout.splitlines() == ["[] [] ['LC_CTYPE']", "no input"]


@every
def test_a_program_sees_no_module_but_the_standard_library(wall: Wall) -> None:
    assert "ModuleNotFoundError" in behind(wall)("import levelhead").stderr
    assert "ModuleNotFoundError" in behind(wall)("import numpy").stderr


@every
def test_a_fork_bomb_stays_small_and_ends(wall: Wall) -> None:
    result = behind(wall)(
        "import os, time\ncount = 0\ntry:\n    while True:\n        if os.fork() == 0:\n            time.sleep(1000)\n"
        "        count += 1\nexcept BlockingIOError:\n    print(count, flush=True)\nos._exit(0)"
    )
    assert result.status == "ok"
    assert 1 <= int(result.stdout) <= LIMITS.processes


def test_a_fork_bomb_whose_children_fork_ends() -> None:
    result = program(
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass", wall_s=2.0
    )
    assert result.status == "timeout"


def test_an_endless_loop_ends_by_processor_time() -> None:
    assert program("while True: pass", cpu_s=1, wall_s=250.0).status == "timeout"


def test_a_program_that_only_waits_ends_by_the_clock() -> None:
    assert program("import time\ntime.sleep(1000)", wall_s=1.0).status == "timeout"


def test_ten_gigabytes_of_output_are_not_read() -> None:
    result = program("import sys\nfor _ in range(10_000): sys.stdout.write('x' * 1_000_000)")
    assert result.status == "output"
    assert len(result.stdout) <= LIMITS.output_kb << 10
    assert program("import sys\nwhile True: sys.stderr.write('x' * 100_000)").status == "output"


def test_ten_gigabytes_of_memory_are_not_given() -> None:
    assert program("block = bytearray(10 * 2**30)").status == "memory"


@every
def test_a_large_file_is_not_written(wall: Wall) -> None:
    result = behind(wall)(
        "try:\n    with open('big', 'wb') as file:\n        while True: file.write(b'x' * 100_000)\n"
        "except OSError as error: print(type(error).__name__)\nimport os\nprint(os.path.getsize('big'))"
    )
    kind, size = result.stdout.split()
    assert kind == "OSError"
    assert int(size) <= LIMITS.file_mb << 20


@walled
def test_many_small_files_do_not_fill_the_disk(wall: Wall) -> None:
    result = behind(wall)(
        "count = 0\ntry:\n    while True:\n        with open(str(count), 'wb') as file: file.write(b'x' * 500_000)\n"
        "        count += 1\nexcept OSError: print(count)"
    )
    assert int(result.stdout) * 500_000 <= LIMITS.file_mb << 20


@walled
def test_the_home_folder_cannot_be_read(wall: Wall, tmp_path: Path) -> None:
    secret = Path.home() / f".levelhead-test-{os.getpid()}"
    secret.write_text("secret")
    nearby = tmp_path / "secret"
    nearby.write_text("secret")
    try:
        result = behind(wall)(
            f"for path in ({str(secret)!r}, {str(nearby)!r}, '/etc/passwd', '/proc/1/environ', '/proc/self/maps'):\n"
            "    try: print(open(path).read())\n    except OSError as error: print(type(error).__name__)"
        )
    finally:
        secret.unlink()
    assert result.stdout.split() == ["FileNotFoundError"] * 5


@walled
def test_nothing_outside_its_folder_can_be_written(wall: Wall) -> None:
    result = behind(wall)(
        "import sys\nfor path in ('/x', sys.prefix + '/x', '/usr/lib/x', '/dev/x', '/tmp/x'):\n"
        "    try: print(open(path, 'w').close())\n    except OSError: print('refused')"
    )
    # Where the interpreter lives below /tmp, the program sees that folder, read-only, instead of a private one.
    private = "refused" if Path(sys.prefix).is_relative_to("/tmp") else "None"
    assert result.stdout.split() == ["refused"] * 4 + [private]


@every
def test_no_socket_is_opened_and_nothing_outside_is_reached(wall: Wall) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        result = behind(wall)(
            "import socket\nfor family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):\n"
            "    try:\n        socket.socket(family)\n        print('opened')\n"
            "    except PermissionError: print('refused')\n"
            f"try:\n    socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 1)\n    print('connected')\n"
            "except OSError: print('refused')"
        )
        with pytest.raises(TimeoutError):
            server.accept()
    assert result.stdout.split() == ["refused"] * 4
    assert result.network in {"namespace", "filter"}


def changed_launcher(monkeypatch: pytest.MonkeyPatch, folder: Path, module: str, old: str, new: str) -> None:
    """Have the trainer start a launcher in which some of its text is another."""
    shutil.copytree(Path(run.__file__).parent / "launcher", folder / "launcher")
    place = folder / "launcher" / module
    text = place.read_text()
    assert old in text
    place.write_text(text.replace(old, new))
    monkeypatch.setattr(run, "_LAUNCHER", folder)


@needs("namespaces")
def test_the_network_is_missing_even_without_the_filter(
    wall: Wall, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    changed_launcher(monkeypatch, tmp_path, "main.py", "seccomp.install(sharing)", "raise OSError")
    with socket.create_server(("127.0.0.1", 0)) as server:
        result = behind(wall)(
            "import socket\nsocket.socket()\n"
            f"try: socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 1)\n"
            "except OSError as error: print(error.strerror)"
        )
    assert result.stdout == "Network is unreachable\n"
    assert result.network == "namespace"


@every
def test_a_process_that_slips_away_is_ended_with_the_program(wall: Wall) -> None:
    result = behind(wall)(
        "import os, time\nif os.fork() == 0:\n    try: os.setsid()\n    except PermissionError: pass\n"
        "    if os.fork() == 0:\n        for fd in range(3): os.close(fd)\n        time.sleep(1000)\n"
        "    os._exit(0)\nprint('bye')"
    )
    assert result.stdout == "bye\n"


@walled
def test_a_program_can_neither_see_nor_signal_anybody_else(wall: Wall) -> None:
    result = behind(wall)(
        "import os, signal\nprint(os.path.exists('/proc'), os.getuid() != 0)\n"
        f"for pid in (1, {os.getpid()}, {os.getppid()}, -1):\n"
        "    try: os.kill(pid, signal.SIGKILL) if pid != -1 else None; print('sent')\n"
        "    except (PermissionError, ProcessLookupError): print('refused')"
    )
    lines = result.stdout.splitlines()
    assert lines[0] == "False True"
    assert lines[2:4] == ["refused", "refused"]


@walled
def test_a_program_cannot_mount_unshare_or_become_root(wall: Wall) -> None:
    result = behind(wall)(
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None))\n"
        "try: os.setuid(0); print('root')\nexcept OSError: print('refused')"
    )
    assert result.stdout.split() == ["-1", "refused"]


def test_a_program_too_long_or_with_zeros_is_refused_unread() -> None:
    assert run_program("#" * (run.LONGEST + 1)).status == "refused"
    assert run_program("print('a\0b')").status == "refused"


def test_programs_run_side_by_side() -> None:
    results: list[ProgramResult] = []
    threads = [
        threading.Thread(target=lambda i=i: results.append(program(f"import time\ntime.sleep(0.3)\nprint({i})")))
        for i in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(result.stdout) for result in results) == list(range(6))


def test_no_temporary_folder_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program("open('x', 'w').write('y')")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9.00 GiB", "memory"),
        ("OSError: [Errno 12] Cannot allocate memory", "memory"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "memory"),
        ("ValueError: no MemoryError here", "error"),
        ("NameError: name 'memory' is not defined", "error"),
    ],
)
def test_a_limit_of_memory_is_named_whatever_writes_its_last_line(line: str, status: str) -> None:
    source = f"import sys\nsys.stderr.write({line!r})\nsys.exit(1)"
    assert program(source).status == status
