"""Runs whose reward function does not come back: interrupts, and a bound on the wait."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from levelhead.api import Result, train
from reward_runs import one_task, run_command
from small_run import events, metrics, same_weights, steps


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are written by the tests that look at one."""
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    return functools.partial(run_command, tmp_path, monkeypatch=monkeypatch, capsys=capsys)


BLOCKS = """
import asyncio, os, pathlib, sys, threading, time
here = pathlib.Path(__file__).parent


def held():
    return not (here / "released").exists()


def hold():
    while held():
        time.sleep(0.02)


def block(how):
    if how == "sleep":
        hold()
    elif how == "spin":
        while held():
            pass
    elif how == "grow":
        return iter(lambda: 1.0, None)
    elif how == "pool":
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(2) as pool:
            pool.submit(hold).result()
    elif how == "exit":
        sys.exit(7)
    elif how == "interrupt":
        raise KeyboardInterrupt
    elif how == "lock":
        lock = threading.Lock()
        lock.acquire()
        while held() and not lock.acquire(timeout=0.02):
            pass


def reward(prompts, completions, completion_ids, trainer_state, **columns):
    if len(completions) == 12 and trainer_state.global_step == 2 and (here / "how").exists():
        (here / "ready").write_text("")
        block((here / "how").read_text())
    return [float(sum(ids) % 5) / 4 for ids in completion_ids]


async def later(**arguments):
    return reward(**arguments)


async def waits(**arguments):
    if len(arguments["completions"]) == 12 and arguments["trainer_state"].global_step == 2 and (here / "how").exists():
        (here / "ready").write_text("")
        await asyncio.sleep(3600)
    return reward(**arguments)
"""


@pytest.fixture(autouse=True)
def released(tmp_path: Path) -> Iterator[None]:
    """Let threads go that a test has left in a reward, so that they do not outlive it in this process."""
    yield
    (tmp_path / "a").mkdir(exist_ok=True)
    (tmp_path / "a" / "released").touch()


def blocking(folder: Path, how: str, function: str = "reward", **changes: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    given = one_task(folder, BLOCKS, function, checkpoint__every=0, **changes)
    (folder / "how").write_text(how)
    return given


def launch(folder: Path, given: dict[str, Any]) -> subprocess.Popen[str]:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(given), encoding="utf-8")
    arguments = ["train", str(path), "--out", str(folder / "run")]
    return subprocess.Popen(
        [sys.executable, "-m", "levelhead.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[str], timeout: float = 60.0) -> tuple[int, str]:
    try:
        _, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, err


def wait_for(path: Path, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Result]:
    folder = tmp_path_factory.mktemp("undisturbed")
    runs: dict[str, Result] = {}

    def get(function: str) -> Result:
        if function not in runs:
            given = blocking(folder / function, "", function)
            (folder / function / "how").unlink()
            runs[function] = train(given, out=folder / function / "run")
        return runs[function]

    return get


@pytest.fixture
def harmless_interrupts() -> Iterator[None]:
    """An interrupt that comes when nothing handles it any more ends no test session."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


def goes_on(folder: Path, given: dict[str, Any], wanted: Result) -> None:
    """Resume an interrupted run without what blocked it."""
    run = folder / "run"
    assert [row["step"] for row in steps(run, "grpo")] == [1, 2]
    (folder / "how").unlink()
    resumed = train(given, out=run, resume=True)
    assert resumed.outcome == "done"
    assert metrics(resumed.folder) == metrics(wanted.folder)
    assert same_weights(resumed.model, wanted.model)


@pytest.mark.parametrize(("how", "function"), [("sleep", "reward"), ("spin", "later"), ("sleep", "waits")])
def test_the_first_interrupt_ends_the_wait_for_a_reward_and_the_run_goes_on_from_the_step_before(
    how: str, function: str, tmp_path: Path, undisturbed: Callable[[str], Result], harmless_interrupts: None
) -> None:
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    pressed: list[float] = []

    def press() -> None:
        wait_for(tmp_path / "a" / "ready")
        time.sleep(0.2)
        pressed.append(time.monotonic())
        signal.pthread_kill(main_thread, signal.SIGINT)

    given = blocking(tmp_path / "a", how, function)
    finger = threading.Thread(target=press)
    finger.start()
    result = train(given, out=tmp_path / "a" / "run")
    finger.join()
    assert result.outcome == "interrupted"
    assert time.monotonic() - pressed[0] < 10
    goes_on(tmp_path / "a", given, undisturbed(function))


def test_an_interrupted_command_ends_though_the_reward_has_left_threads_that_never_end(
    tmp_path: Path, undisturbed: Callable[[str], Result]
) -> None:
    given = blocking(tmp_path / "a", "pool")
    process = launch(tmp_path / "a", given)
    wait_for(tmp_path / "a" / "ready", 120)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    code, err = finish(process, 30)
    run = tmp_path / "a" / "run"
    assert code == 130
    assert f"interrupted and saved; continue with --resume --out {run}" in err.splitlines()[-1]
    goes_on(tmp_path / "a", given, undisturbed("reward"))


ENDS = {
    "sleep": "took longer than 0.5 s",
    "spin": "took longer than 0.5 s",
    "lock": "took longer than 0.5 s",
    "pool": "took longer than 0.5 s",
    "exit": "raised SystemExit: 7",
    "interrupt": "raised KeyboardInterrupt",
}


@pytest.mark.parametrize("how", ["sleep", "exit", "interrupt"])
def test_a_reward_that_does_not_come_back_ends_the_run_with_exit_code_3(how: str, command: Any, tmp_path: Path) -> None:
    given = blocking(tmp_path / "a", how)
    given["tasks"][0]["reward_timeout_s"] = 0.5
    code, err = command(given)
    assert code == 3
    assert f"reward function {tmp_path / 'a' / 'mine.py'}:reward {ENDS[how]}" in err
    assert "saved after step 2; continue with --resume" in err
    (last,) = [event for event in events(tmp_path / "run") if event["action"] == "stop"]
    assert (last["code"], last["evidence"]["cause"]) == ("rewards", "reward-function")


KINDS = {"sleep": "reward", "spin": "later", "lock": "reward", "pool": "reward", "exit": "later", "interrupt": "reward"}


@pytest.mark.parametrize(("how", "function"), sorted(KINDS.items()))
def test_a_reward_that_does_not_come_back_is_dropped_where_the_recipe_says_so(
    how: str, function: str, tmp_path: Path
) -> None:
    given = blocking(tmp_path / "a", how, function)
    given["tasks"][0] |= {"reward_timeout_s": 0.5, "on_reward_error": "drop"}
    result = train(given, out=tmp_path / "a" / "run")
    assert result.outcome == "done"
    assert [row["frac_reward_errors"] for row in steps(result.folder, "grpo")] == [0.0, 0.0, 1.0, 0.0]
    told = [event for event in events(result.folder) if event["code"] == "reward-errors"]
    assert [event["step"] for event in told] == [3]
    assert ENDS[how] in told[0]["message"]
