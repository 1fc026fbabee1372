"""The sandbox holds: a fork bomb, an endless loop, endless output, the home folder, a socket, and more."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from levelhead.errors import InputError
from levelhead.recipe.workflow import SandboxLimits
from levelhead.tasks.workflow.sandbox import ProgramResult, find_wall, hide, run, run_program
from levelhead.tasks.workflow.sandbox.run import Wall

LIMITS = SandboxLimits(cpu_s=2, wall_s=60, memory_mb=256, output_kb=16, file_mb=4, processes=6)
UNBOUND = LIMITS.model_copy(update={"isolation": "none"})
PROBES = {wall: run_program("print('hello')", UNBOUND, walls=(wall,)) for wall in run.WALLS}

pytestmark = pytest.mark.skipif(
    all(probe.status == "refused" for probe in PROBES.values()), reason=f"programs cannot run here: {PROBES}"
)


def needs(*walls: Wall) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test behind each of these walls, and skip those that cannot be had here."""
    marks = [
        pytest.param(
            wall,
            marks=pytest.mark.skipif(PROBES[wall].wall != wall, reason=f"no {wall} here: {PROBES[wall].note}"),
        )
        for wall in walls
    ]
    return pytest.mark.parametrize("wall", marks)


walled = needs("bubblewrap", "namespaces")
every = needs(*run.WALLS)


def program(source: str, walls: Sequence[Wall] = run.WALLS, **limits: object) -> ProgramResult:
    return run_program(source, UNBOUND.model_copy(update=limits), walls=walls)


def behind(wall: Wall) -> Callable[..., ProgramResult]:
    return lambda source, **limits: program(source, (wall,), **limits)


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
    assert result.stdout.split() == ["refused"] * 4 + ["None"]


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


def test_no_temporary_folder_is_left() -> None:
    before = set(Path(tempfile.gettempdir()).glob("levelhead-*"))
    program("open('x', 'w').write('y')")
    assert set(Path(tempfile.gettempdir()).glob("levelhead-*")) <= before


def test_required_isolation_is_the_default_and_refuses_where_there_is_no_wall() -> None:
    assert SandboxLimits().isolation == "required"
    with pytest.raises(InputError, match=r"tasks\[\].sandbox.isolation is 'required'.*install bubblewrap") as refused:
        run_program("print('hello')", LIMITS, walls=())
    assert "\n" not in str(refused.value)


@every
def test_required_isolation_runs_behind_each_wall(wall: Wall) -> None:
    result = run_program("print('hello')", LIMITS, walls=(wall,))
    network = "filter" if wall == "landlock" else "namespace"
    assert (result.stdout, result.network, result.wall) == ("hello\n", network, wall)


def test_the_best_wall_that_is_there_is_taken() -> None:
    best = next((wall for wall in run.WALLS if PROBES[wall].wall == wall), "none")
    assert find_wall(UNBOUND).wall == best


def test_bubblewrap_that_does_not_work_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho no such luck >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(run, "_bubblewrap", lambda: str(broken))
    run._available.cache_clear()
    try:
        assert "bubblewrap" not in run._available(run.WALLS)
        assert run._available(("bubblewrap",)) == ()
    finally:
        monkeypatch.undo()
        run._available.cache_clear()


def test_without_any_wall_it_says_so_and_the_limits_still_hold(caplog: pytest.LogCaptureFixture) -> None:
    run._said.clear()
    result = program("import socket\nsocket.socket()", ())
    if result.status == "refused":
        pytest.skip(result.note)
    assert result.wall == "none"
    assert result.network in {"filter", "open"}
    assert "NO WALL" in caplog.text
    assert program("import time\ntime.sleep(99)", (), wall_s=1.0).status == "timeout"


def test_a_network_namespace_is_not_called_network_access(caplog: pytest.LogCaptureFixture) -> None:
    for wall in ("landlock", "none"):
        run._said.clear()
        with caplog.at_level(logging.INFO):
            run._speak(ProgramResult("ok", network="namespace", wall=wall, note="why"), UNBOUND)  # type: ignore[arg-type]
    assert "NETWORK ACCESS" not in caplog.text
    assert caplog.text.count("no network") == 2


@walled
def test_installed_packages_cannot_be_reached_by_any_path(wall: Wall) -> None:
    packages = run.view()[1]
    if not packages:
        pytest.skip("no packages are installed beside the standard library")
    result = behind(wall)(
        f"import os\nfor place in {packages!r}: print(os.listdir(place))\nimport json, ctypes, sqlite3"
    )
    assert (result.stdout, result.status) == ("[]\n" * len(packages), "ok")


@walled
def test_an_interpreter_in_the_temporary_folder_is_no_obstacle(wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        python = str(Path(folder) / "python3")
        shutil.copy(run.interpreter(), python)
        shown, not_shown = run.view()
        monkeypatch.setattr(run, "interpreter", lambda: python)
        monkeypatch.setattr(run, "view", lambda: ((*shown, python), not_shown))
        result = behind(wall)("import os, sys\nprint(sys.executable, os.listdir('.'), os.getcwd())")
    assert result.stdout.split() == [python, "[]", "/program"]
    assert result.wall == wall


@every
def test_a_program_may_have_a_folder_that_is_closed_to_others(wall: Wall) -> None:
    result = behind(wall)("import tempfile, os\nwith tempfile.TemporaryDirectory() as d: print(os.listdir(d))")
    assert (result.status, result.stdout) == ("ok", "[]\n")


linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux closes a process to others of its user")


def dumpable() -> int:
    return int(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))


@linux
def test_the_trainer_is_closed_while_programs_run_and_open_again_after() -> None:
    seen: list[int] = []
    before = dumpable()
    threads = [threading.Thread(target=program, args=(f"import time\ntime.sleep({0.2 * i})",)) for i in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        seen.append(dumpable())
        time.sleep(0.01)
    assert 0 in seen[:-1]
    assert dumpable() == before
    with hide.hidden(), hide.hidden():
        assert dumpable() == 0
    assert dumpable() == before


@linux
@every
def test_programs_end_with_a_trainer_that_is_killed(wall: Wall) -> None:
    source = "import os, time\nos.fork()\nos.fork()\nfor fd in range(3): os.close(fd)\ntime.sleep(1000)"
    call = f"from levelhead.tasks.workflow.sandbox import run_program; run_program({source!r}, walls=({wall!r},))"
    code = f"from levelhead.recipe.workflow import SandboxLimits\n{call}"
    before = descendants()
    trainer = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + 30
        while len(descendants() - before) < 7 and time.monotonic() < deadline:
            time.sleep(0.05)
        started = {pid: start(pid) for pid in descendants() - before - {trainer.pid}}
        assert len(started) >= 6
    finally:
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
    deadline = time.monotonic() + 20
    while left := {pid for pid, when in started.items() if when and start(pid) == when}:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def start(pid: int) -> str | None:
    """When a process began, which tells it from a later one with its number; nothing for one that is over."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
