"""One process a run folder: a live one is left alone, a dead one's lock is taken over, and nobody's for ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from levelhead.api import train
from levelhead.errors import InputError
from levelhead.training.lock import FILE, Holder, RunLock, refuse_held
from small_run import events, recipe

HOLDS = """
import sys
from pathlib import Path
from levelhead.training.lock import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.readline()
"""


class Other:
    """Another process that holds a folder until it is killed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen([sys.executable, "-c", HOLDS, str(folder)], **pipes)
        self.pid = self._process.pid
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "held\n"

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Other]:
    process = Other(tmp_path / "run")
    yield process
    process.kill()


def held_by(folder: Path, holder: Holder) -> Holder:
    folder.mkdir(exist_ok=True)
    (folder / FILE).write_text(json.dumps(asdict(holder)), encoding="utf-8")
    return holder


def test_a_lock_is_there_while_it_is_held_and_gone_afterwards(tmp_path: Path) -> None:
    held = RunLock(tmp_path)
    saved = json.loads((tmp_path / FILE).read_text(encoding="utf-8"))
    assert (saved["pid"], saved["host"]) == (os.getpid(), Holder.me().host)
    with pytest.raises(InputError, match="a run is going on here"):
        RunLock(tmp_path)
    held.release()
    assert not (tmp_path / FILE).exists()
    RunLock(tmp_path).release()


def test_a_process_that_lives_is_left_alone(tmp_path: Path, other: Other) -> None:
    before = (tmp_path / "run" / FILE).read_text(encoding="utf-8")
    for refused in (RunLock, refuse_held):
        with pytest.raises(InputError, match=f"a run is going on here .process {other.pid} on ") as error:
            refused(tmp_path / "run")
        assert "\n" not in str(error.value)
    assert (tmp_path / "run" / FILE).read_text(encoding="utf-8") == before


def test_the_lock_of_a_process_that_is_gone_is_taken_over(tmp_path: Path, other: Other) -> None:
    other.kill()
    refuse_held(tmp_path / "run")
    taken = RunLock(tmp_path / "run")
    assert taken.taken_from is not None
    assert taken.taken_from.pid == other.pid
    assert [event.code for event in taken.events()] == ["lock-taken-over"]
    taken.release()


def test_the_mark_of_an_older_version_is_read(tmp_path: Path) -> None:
    """It said more of the process; the kernel knows the rest."""
    older = {**asdict(Holder.me()), "boot": "b", "space": "s", "started": 1}
    (tmp_path / FILE).write_text(json.dumps(older), encoding="utf-8")
    taken = RunLock(tmp_path)
    assert taken.taken_from == Holder(older["pid"], older["host"], older["since"])
    taken.release()


def test_another_machine_is_never_judged(tmp_path: Path) -> None:
    held_by(tmp_path, replace(Holder.me(), host="elsewhere", pid=1))
    with pytest.raises(InputError, match="elsewhere") as error:
        RunLock(tmp_path)
    assert f"if it is gone, delete {tmp_path / FILE}" in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '{"pid": 0}', '{"pid": "x", "host": 1}'])
def test_a_lock_that_cannot_be_read_says_how_to_remove_it(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=f"if no run is going on in {tmp_path}, delete it"):
        RunLock(tmp_path)


def test_of_many_that_take_over_at_once_one_gets_it(tmp_path: Path) -> None:
    held_by(tmp_path, Holder.me())
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom levelhead.errors import InputError\n"
        "from levelhead.training.lock import RunLock\nprint('ready', flush=True)\nsys.stdin.readline()\n"
        "try:\n    lock = RunLock(Path(sys.argv[1])); print('mine', flush=True); sys.stdin.readline()\n"
        "except InputError: print('refused', flush=True)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    crowd = [subprocess.Popen(command, **pipes) for _ in range(6)]  # type: ignore[call-overload]
    for process in crowd:
        process.stdout.readline()
    for process in crowd:
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.stdout.readline().strip() for process in crowd]
    for process in crowd:
        process.kill()
        process.communicate()
    assert sorted(said) == ["mine"] + ["refused"] * 5


def test_a_second_process_cannot_resume_a_run_that_goes_on(tmp_path: Path) -> None:
    given = recipe(tmp_path, grpo=None, sft__steps=2, checkpoint__every=1)
    run = tmp_path / "run"
    train(given, out=run)
    assert not (run / FILE).exists()
    before = (run / "metrics.jsonl").read_bytes()
    other = Other(run)
    for resume in (True, False):
        with pytest.raises(InputError, match=f"{run}: a run is going on here"):
            train(given, out=run, resume=resume)
    assert (run / "metrics.jsonl").read_bytes() == before
    other.kill()
    given["sft"]["steps"] = 3
    train(given, out=run, resume=True, accept_changes=["sft.steps"])
    assert "lock-taken-over" in [event["code"] for event in events(run)]
    assert not (run / FILE).exists()


def test_the_lock_is_gone_after_an_error_and_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from levelhead.training.sft import SftTrainer

    for number, error in enumerate((KeyboardInterrupt, RuntimeError)):
        run = tmp_path / f"run-{number}"

        def step(*_: object, error: type[BaseException] = error, run: Path = run) -> None:
            assert (run / FILE).exists()
            raise error

        monkeypatch.setattr(SftTrainer, "step", step)
        with pytest.raises(error):
            train(recipe(tmp_path, grpo=None), out=run)
        assert not (run / FILE).exists()
