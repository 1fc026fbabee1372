"""The sandbox holds: a fork bomb, an endless loop, endless output, the home folder, a socket, and more."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from levelhead.errors import InputError
from levelhead.recipe.workflow import SandboxLimits
from levelhead.tasks.workflow.sandbox import ProgramResult, run, run_program

LIMITS = SandboxLimits(cpu_s=2, wall_s=60, memory_mb=256, output_kb=16, file_mb=4, processes=6)
PROBE = run_program("print('hello')", LIMITS)

pytestmark = pytest.mark.skipif(PROBE.status == "refused", reason=f"programs cannot run here: {PROBE.note}")
walled = pytest.mark.skipif(not PROBE.own_files, reason=f"no namespaces here: {PROBE.note}")


def program(source: str, **limits: object) -> ProgramResult:
    return run_program(source, LIMITS.model_copy(update=limits))


def descendants() -> set[int]:
    """Processes whose chain of parents leads here."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError, ValueError):
            continue
    found = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found - {os.getpid()}
        found |= more


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before = descendants()
    yield
    deadline = time.monotonic() + 30
    while descendants() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert descendants() <= before


def test_a_program_runs_and_its_output_comes_back() -> None:
    result = program("import math\nprint(math.comb(10, 3))\nimport sys\nsys.stderr.write('aside')")
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


def test_a_program_sees_no_module_but_the_standard_library() -> None:
    assert "ModuleNotFoundError" in program("import levelhead").stderr
    assert "ModuleNotFoundError" in program("import numpy").stderr


def test_a_fork_bomb_stays_small_and_ends() -> None:
    result = program(
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


def test_a_large_file_is_not_written() -> None:
    result = program(
        "try:\n    with open('big', 'wb') as file:\n        while True: file.write(b'x' * 100_000)\n"
        "except OSError as error: print(type(error).__name__)\nimport os\nprint(os.path.getsize('big'))"
    )
    kind, size = result.stdout.split()
    assert kind == "OSError"
    assert int(size) <= LIMITS.file_mb << 20


@walled
def test_many_small_files_do_not_fill_the_disk() -> None:
    result = program(
        "count = 0\ntry:\n    while True:\n        with open(str(count), 'wb') as file: file.write(b'x' * 500_000)\n"
        "        count += 1\nexcept OSError: print(count)"
    )
    assert int(result.stdout) * 500_000 <= LIMITS.file_mb << 20


@walled
def test_the_home_folder_cannot_be_read(tmp_path: Path) -> None:
    secret = Path.home() / f".levelhead-test-{os.getpid()}"
    secret.write_text("secret")
    nearby = tmp_path / "secret"
    nearby.write_text("secret")
    try:
        result = program(
            f"for path in ({str(secret)!r}, {str(nearby)!r}, '/etc/passwd', '/proc/1/environ', '/proc/self/maps'):\n"
            "    try: print(open(path).read())\n    except OSError as error: print(type(error).__name__)"
        )
    finally:
        secret.unlink()
    assert result.stdout.split() == ["FileNotFoundError"] * 5


@walled
def test_nothing_outside_its_folder_can_be_written() -> None:
    result = program(
        "import sys\nfor path in ('/x', sys.prefix + '/x', '/usr/lib/x', '/dev/x', '/tmp/x'):\n"
        "    try: print(open(path, 'w').close())\n    except OSError: print('refused')"
    )
    assert result.stdout.split() == ["refused"] * 4 + ["None"]


def test_no_socket_is_opened_and_nothing_outside_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        result = program(
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


@walled
def test_the_network_is_missing_even_without_the_filter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    child = Path(run.__file__).with_name("child.py").read_text()
    unfiltered = tmp_path / "child.py"
    unfiltered.write_text(child.replace("    filtered = _filter_sockets()\n", "    filtered = False\n"))
    assert unfiltered.read_text() != child
    monkeypatch.setattr(run, "_CHILD", unfiltered)
    with socket.create_server(("127.0.0.1", 0)) as server:
        result = program(
            "import socket\nsocket.socket()\n"
            f"try: socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 1)\n"
            "except OSError as error: print(error.strerror)"
        )
    assert result.stdout == "Network is unreachable\n"


def test_a_process_that_slips_away_is_ended_with_the_program() -> None:
    result = program(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        for fd in range(3): os.close(fd)\n        time.sleep(1000)\n    os._exit(0)\nprint('bye')"
    )
    assert result.stdout == "bye\n"


@walled
def test_a_program_can_neither_see_nor_signal_anybody_else() -> None:
    result = program(
        "import os, signal\nprint(os.path.exists('/proc'), os.getuid() != 0)\n"
        f"for pid in (1, {os.getpid()}, {os.getppid()}, -1):\n"
        "    try: os.kill(pid, signal.SIGKILL) if pid != -1 else None; print('sent')\n"
        "    except (PermissionError, ProcessLookupError): print('refused')"
    )
    lines = result.stdout.splitlines()
    assert lines[0] == "False True"
    assert lines[2:4] == ["refused", "refused"]


@walled
def test_a_program_cannot_mount_unshare_or_become_root() -> None:
    result = program(
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None))\n"
        "try: os.setuid(0); print('root')\nexcept PermissionError: print('refused')"
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


def test_no_temporary_folder_is_left() -> None:
    before = set(Path(tempfile.gettempdir()).glob("levelhead-*"))
    program("open('x', 'w').write('y')")
    assert set(Path(tempfile.gettempdir()).glob("levelhead-*")) <= before


def test_without_namespaces_it_says_so_and_the_limits_still_hold(caplog: pytest.LogCaptureFixture) -> None:
    run._warned.clear()
    result = run_program("import socket\nsocket.socket()", LIMITS, namespaces=False)
    if result.status == "refused":
        assert "unprivileged user cannot run" in result.note
        return
    assert not result.own_files
    assert result.network in {"filter", "open"}
    assert "without a file system of their own" in caplog.text
    assert (
        run_program("import time\ntime.sleep(99)", LIMITS.model_copy(update={"wall_s": 1.0}), namespaces=False).status
        == "timeout"
    )


def test_required_isolation_refuses_to_run_without_it() -> None:
    strict = LIMITS.model_copy(update={"isolation": "required"})
    with pytest.raises(InputError, match="isolation is 'required'"):
        run_program("print('hello')", strict, namespaces=False)


@walled
def test_required_isolation_runs_where_there_is_some() -> None:
    result = run_program("print('hello')", LIMITS.model_copy(update={"isolation": "required"}))
    assert (result.stdout, result.network, result.own_files) == ("hello\n", "namespace", True)


def _system_python() -> str | None:
    for path in ("/usr/bin/python3", sys.executable):
        place = Path(path).resolve()
        if place.exists() and all(parent.stat().st_mode & 0o005 == 0o005 for parent in place.parents):
            return str(place)
    return None


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.skipif(_system_python() is None, reason="no interpreter that an unprivileged user can run")
@pytest.mark.parametrize("namespaces", [True, False])
def test_an_unprivileged_user_gets_the_same_walls(tmp_path: Path, namespaces: bool) -> None:
    python = _system_python() or ""
    script = Path(tempfile.mkdtemp()) / "child.py"
    script.write_text(Path(run.__file__).with_name("child.py").read_text())
    folder = Path(tempfile.mkdtemp())
    for place in (script.parent, script, folder):
        place.chmod(0o755)
    os.chown(folder, 65534, 65534)
    read, write = os.pipe()
    config = {
        **LIMITS.model_dump(include={"cpu_s", "memory_mb", "file_mb", "processes"}),
        "required": False,
        "namespaces": namespaces,
        "folder": str(folder),
        "prefix": "/usr",
        "python": python,
        "status": write,
        "trainer": os.getpid(),
        "number": os.getpid(),
    }
    source = (
        "import os, socket\nprint(os.getuid())\ntry: socket.socket()\nexcept OSError: print('refused')\n"
        "try: print(open('/etc/passwd').read(4))\nexcept OSError: print('hidden')\n"
        "for path in ('/levelhead-x', '/usr/lib/levelhead-x', '/dev/levelhead-x'):\n"
        "    try: open(path, 'w'); print('written')\n    except OSError: print('refused')"
    )
    done = subprocess.run(
        [python, "-I", "-S", "-B", str(script), json.dumps(config)],
        input=source,
        text=True,
        capture_output=True,
        env={},
        cwd="/",
        pass_fds=(write,),
        user=65534,
        group=65534,
        extra_groups=[],
        timeout=120,
        check=False,
    )
    os.close(write)
    with os.fdopen(read) as pipe:
        status = [json.loads(line) for line in pipe]
    if namespaces and not status[0].get("files"):
        pytest.skip(f"unprivileged users get no namespaces here: {status}")
    assert done.stdout.split() == ["65534", "refused", "hidden" if namespaces else "root", *["refused"] * 3]
    assert status[-1] == {"exit": 0}
