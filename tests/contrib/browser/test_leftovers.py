from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from levelhead.contrib.browser import leftovers
from levelhead.contrib.browser.leftovers import BrowserRecord, Process, end_leftovers, parent_of, records_folder

Popen = subprocess.Popen


@pytest.fixture
def sleeper() -> Iterator[Popen[bytes]]:
    """A process that leads a group of two."""
    code = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    process = Popen([sys.executable, "-c", code + "; print(flush=True); time.sleep(60)"], start_new_session=True,
                    stdout=subprocess.PIPE)  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    if process.poll() is None:
        os.killpg(process.pid, 9)
    process.wait()


def me() -> Process:
    process = Process.find(os.getpid())
    assert process is not None
    return process


def process_of(popen: Popen[bytes]) -> Process:
    process = Process.find(popen.pid)
    assert process is not None
    return process


def gone() -> Process:
    return Process(me().pid, "another time")


def members(group: int) -> list[int]:
    shown = subprocess.run(["ps", "-eo", "pid=,pgid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in shown.splitlines()]
    return [int(pid) for pid, pgid, state in rows if int(pgid) == group and not state.startswith("Z")]


def test_a_process_is_known_by_its_start_and_not_by_its_id_alone() -> None:
    assert me().alive
    assert not gone().alive
    assert not gone().kill()


def test_the_dead_and_zombies_are_not_alive() -> None:
    process = Popen([sys.executable, "-c", ""])
    for _ in range(200):
        if Process.find(process.pid) is None:
            break
        time.sleep(0.02)
    assert Process.find(process.pid) is None  # not waited for yet: a zombie
    process.wait()
    assert Process.find(process.pid) is None


def test_the_parent_is_found(sleeper: Popen[bytes]) -> None:
    assert parent_of(sleeper.pid) == os.getpid()


def test_a_browser_without_owner_is_ended_with_its_whole_group(sleeper: Popen[bytes], tmp_path: Path) -> None:
    path = BrowserRecord(gone(), process_of(sleeper), None).write(tmp_path)
    assert len(members(sleeper.pid)) == 2
    assert end_leftovers(tmp_path) == [sleeper.pid]
    sleeper.wait(10)
    deadline = time.monotonic() + 10
    while members(sleeper.pid) and time.monotonic() < deadline:
        time.sleep(0.01)  # a busy machine takes its time to bury the other one
    assert members(sleeper.pid) == []
    assert not path.exists()


def test_a_browser_whose_owner_lives_is_left_alone(sleeper: Popen[bytes], tmp_path: Path) -> None:
    path = BrowserRecord(me(), process_of(sleeper), None).write(tmp_path)
    assert end_leftovers(tmp_path) == []
    assert process_of(sleeper).alive
    assert path.exists()


def test_a_process_that_only_has_the_browsers_old_id_is_left_alone(sleeper: Popen[bytes], tmp_path: Path) -> None:
    path = BrowserRecord(gone(), Process(sleeper.pid, "another time"), None).write(tmp_path)
    assert end_leftovers(tmp_path) == []
    assert process_of(sleeper).alive
    assert not path.exists()


def test_a_record_that_cannot_be_read_is_dropped(tmp_path: Path) -> None:
    for name, text in (("1.json", "{"), ("2.json", json.dumps({"owner": 3})), ("3.json", "[]")):
        (tmp_path / name).write_text(text)
    assert end_leftovers(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_records_are_kept_in_a_folder_that_nobody_else_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = records_folder()
    assert folder.stat().st_mode & 0o077 == 0
    folder.chmod(0o777)
    with pytest.raises(OSError, match="not a private folder"):
        records_folder()
