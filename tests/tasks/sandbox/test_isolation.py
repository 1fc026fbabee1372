"""Which wall a program gets, what is said of it, and what it means for the trainer."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from levelhead.errors import InputError
from levelhead.recipe.workflow import SandboxLimits
from levelhead.tasks.sandbox import ProgramResult, find_wall, run, run_program
from levelhead.tasks.sandbox.launcher import system
from levelhead.tasks.sandbox.run import Wall
from levelhead.tasks.sandbox.surroundings import hidden
from sandboxed import LIMITS, PROBES, UNBOUND, behind, can_run, descendants, every, program, walled

pytestmark = can_run


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
    with hidden(), hidden():
        assert dumpable() == 0
    assert dumpable() == before


@linux
@every
def test_programs_end_with_a_trainer_that_is_killed(wall: Wall, tmp_path: Path) -> None:
    source = "import os, time\nos.fork()\nos.fork()\nfor fd in range(3): os.close(fd)\ntime.sleep(1000)"
    call = f"from levelhead.tasks.sandbox import run_program; run_program({source!r}, walls=({wall!r},))"
    code = f"from levelhead.recipe.workflow import SandboxLimits\n{call}"
    before = descendants()
    # A trainer that is killed sweeps nothing: what it leaves is this test's.
    trainer = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)})
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


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_ends_while_it_is_counted_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise ProcessLookupError(3, "No such process")

    for name in ("stat", "read_text"):
        monkeypatch.setattr(Path, name, gone)
    assert system.tasks_of_user() == 0
    assert system.statuses() == {}
