"""One process a run folder: a live one is left alone, a dead one's lock is taken over, and nobody's for ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from levelhead.api import train
from levelhead.errors import InputError
from levelhead.training import lock
from levelhead.training.lock import FILE, Holder, RunLock
from small_run import events, recipe


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which lives until the test kills it."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def held_by(folder: Path, holder: Holder) -> Holder:
    folder.mkdir(exist_ok=True)
    (folder / FILE).write_text(json.dumps(asdict(holder)), encoding="utf-8")
    return holder


def of(process: subprocess.Popen[bytes]) -> Holder:
    return replace(Holder.me(), pid=process.pid, started=lock._started(process.pid))


def test_a_lock_is_there_while_it_is_held_and_gone_afterwards(tmp_path: Path) -> None:
    held = RunLock(tmp_path)
    saved = json.loads((tmp_path / FILE).read_text(encoding="utf-8"))
    assert (saved["pid"], saved["host"]) == (os.getpid(), Holder.me().host)
    with pytest.raises(InputError, match="a run is going on here"):
        RunLock(tmp_path)
    held.release()
    assert list(tmp_path.iterdir()) == []
    RunLock(tmp_path).release()


def test_a_process_that_lives_is_left_alone(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    holder = held_by(tmp_path, of(other))
    with pytest.raises(InputError, match=f"a run is going on here .process {other.pid} on {holder.host}") as error:
        RunLock(tmp_path)
    assert "\n" not in str(error.value)
    assert json.loads((tmp_path / FILE).read_text(encoding="utf-8")) == asdict(holder)


def test_the_lock_of_a_process_that_is_gone_is_taken_over(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    holder = held_by(tmp_path, of(other))
    other.send_signal(signal.SIGKILL)  # a zombie until it is waited for, and gone all the same
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    taken = RunLock(tmp_path)
    assert taken.taken_from == holder
    assert [event.code for event in taken.events()] == ["lock-taken-over"]
    taken.release()


def test_a_number_that_another_process_has_now_holds_nothing(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    held_by(tmp_path, replace(of(other), started=of(other).started - 1))
    RunLock(tmp_path).release()


def test_what_was_before_the_machine_was_started_holds_nothing(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    held_by(tmp_path, replace(of(other), boot="another boot"))
    (tmp_path / f".{FILE}.1.tmp").write_text("of a process that was killed while it wrote it", encoding="utf-8")
    RunLock(tmp_path).release()
    assert list(tmp_path.iterdir()) == []


def test_another_machine_is_never_judged(tmp_path: Path) -> None:
    held_by(tmp_path, replace(Holder.me(), host="elsewhere", pid=1))
    with pytest.raises(InputError, match="elsewhere") as error:
        RunLock(tmp_path)
    assert f"if it is gone, delete {tmp_path / FILE}" in str(error.value)


def test_a_container_beside_this_one_is_judged_by_the_kernel(tmp_path: Path) -> None:
    holder = held_by(tmp_path, replace(Holder.me(), space="pid:[1]", pid=2**31 - 1))
    code = "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, 2); print(1, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / FILE)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(InputError, match="a run is going on here"):
            RunLock(tmp_path)
        process.kill()
    taken = RunLock(tmp_path)
    assert taken.taken_from == holder
    taken.release()


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '{"pid": 0}', '{"pid": "x", "host": 1}'])
def test_a_lock_that_cannot_be_read_says_how_to_remove_it(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=f"if no run is going on in {tmp_path}, delete it"):
        RunLock(tmp_path)


def test_of_many_that_take_over_at_once_one_gets_it(tmp_path: Path) -> None:
    held_by(tmp_path, replace(Holder.me(), started=1))
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom levelhead.errors import InputError\n"
        "from levelhead.training.lock import RunLock\nprint('ready', flush=True)\nsys.stdin.readline()\n"
        "try:\n    RunLock(Path(sys.argv[1])); print('mine', flush=True); sys.stdin.readline()\n"
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


def test_a_second_process_cannot_resume_a_run_that_goes_on(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    given = recipe(tmp_path, grpo=None, sft__steps=2, checkpoint__every=1)
    run = tmp_path / "run"
    train(given, out=run)
    assert not (run / FILE).exists()
    before = (run / "metrics.jsonl").read_bytes()
    held_by(run, of(other))
    for resume in (True, False):
        with pytest.raises(InputError, match=f"{run}: a run is going on here"):
            train(given, out=run, resume=resume)
    assert (run / "metrics.jsonl").read_bytes() == before
    other.kill()
    other.wait()
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
