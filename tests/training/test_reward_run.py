"""A real run whose reward function uses everything that TRL hands to it, and one whose reward function fails."""

from __future__ import annotations

import gzip
import json
import math
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

from levelhead.api import Result, check, train
from levelhead.cli.main import main
from levelhead.doctor.report import examine
from levelhead.errors import RewardError
from levelhead.recipe import validate
from levelhead.report import write
from small_run import events, metrics, recipe, same_weights, steps, write_rows

SMALL = {"sft": None, "eval__final_items": 2, "grpo__audit__first": 0, "eval__constant": False}


def one_task(folder: Path, source: str, *functions: str, **changes: Any) -> dict[str, Any]:
    """A recipe of one task with reward functions of its own."""
    given = recipe(folder, **{**SMALL, **changes})
    file = folder / "mine.py"
    file.write_text(source, encoding="utf-8")
    rewards = [f"{file}:{name}" for name in functions or ("reward",)]
    given["tasks"] = [{**given["tasks"][0], "rewards": rewards}]
    return given


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are written by the tests that look at one."""
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


# TRL's signature


EVERYTHING = """
import asyncio, json, pathlib

SEEN = pathlib.Path(__file__).with_name("seen.jsonl")


def kinds(values):
    return sorted({type(value).__name__ for value in values})


def note(name, prompts, completions, completion_ids, trainer_state, columns):
    n = len(completions)
    assert all(len(values) == n for values in (prompts, completion_ids, *columns.values()))
    assert all(isinstance(i, int) for ids in completion_ids for i in ids)
    state = [trainer_state.global_step, trainer_state.max_steps, trainer_state.epoch]
    row = {"name": name, "n": n, "state": state, "prompts": kinds(prompts), "completions": kinds(completions)}
    row |= {"columns": {key: values[0] for key, values in columns.items()}}
    row |= {"process": trainer_state.is_world_process_zero}
    with SEEN.open("a") as file:
        file.write(json.dumps(row) + "\\n")


def by_length(prompts, completions, completion_ids, trainer_state, log_extra, log_metric, **columns):
    note("by_length", prompts, completions, completion_ids, trainer_state, columns)
    lengths = [len(ids) for ids in completion_ids]
    log_extra("length_seen", lengths)
    for ids in completion_ids:  # bit by bit, as TRL allows
        log_extra("odd", [{"first": ids[0], "share": float("nan")}])
    log_metric("lengths/mean", sum(lengths) / len(lengths))
    log_metric("lengths/longest", max(lengths))
    log_metric("reward", 99.0)  # a name that means something else
    log_metric("step", 99.0)
    log_metric("nothing", float("nan"))
    return [float(sum(ids) % 5) / 4 for ids in completion_ids]


async def by_chance(prompts, completions, completion_ids, trainer_state, log_metric=None, log_extra=None, **columns):
    note("by_chance", prompts, completions, completion_ids, trainer_state, columns)
    await asyncio.sleep(0)
    log_metric("asked", 2)
    return [None if sum(ids) % 3 else 0.5 for ids in completion_ids]


class Calls:
    def __call__(self, completions, level):
        return iter([float(one) for one in level])


calls = Calls()


def scheduled(completions, trainer_state):
    return [trainer_state.epoch] * len(completions)
"""


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("everything")
    given = one_task(folder, EVERYTHING, "by_length", "by_chance", "calls", "scheduled", eval__every=2)
    given["tasks"][0]["reward_weights"] = [1.0, 2.0, 0.0, 0.0]
    rows = [{"prompt": f"question {i}?", "answer": f"the number is {i}.", "level": i % 3} for i in range(12)]
    write_rows(folder / "one.jsonl", rows)
    return folder, train(given, out=folder / "run")


def seen(folder: Path, name: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "seen.jsonl").read_text().splitlines()]
    return [row for row in rows if row["name"] == name]


def test_a_reward_gets_prompts_completions_tokens_and_columns(everything: tuple[Path, Result]) -> None:
    folder, _ = everything
    for name in ("by_length", "by_chance"):
        for row in seen(folder, name):
            assert (row["prompts"], row["completions"], row["process"]) == (["str"], ["str"], True)
            assert set(row["columns"]) == {"answer", "level"}
    assert {row["n"] for row in seen(folder, "by_length")} == {1, 12}


def test_the_trainer_state_counts_the_steps_that_are_done_and_evaluations_are_all_scored_alike(
    everything: tuple[Path, Result],
) -> None:
    folder, _ = everything
    for name in ("by_length", "by_chance"):
        rows = seen(folder, name)
        assert [row["state"] for row in rows if row["n"] == 12] == [[i, 4, i / 4] for i in range(4)]
        assert [row["state"] for row in rows if row["n"] == 1] == [[4, 4, 1.0]] * 3


def test_logged_metrics_are_in_the_steps_metrics_under_their_own_names(everything: tuple[Path, Result]) -> None:
    _, result = everything
    rows = steps(result.folder, "grpo")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert row["lengths/mean"] == pytest.approx(row["completions/mean_length"])
        assert row["lengths/longest"] == row["completions/max_length"]
        assert row["asked"] == 2.0
        # What the run itself measures keeps its name, and what was logged is not lost.
        assert row["reward"] < 3
        assert row["logged/reward"] == row["logged/step"] == 99.0
        assert "nothing" not in row
    evaluated = [row for row in metrics(result.folder) if row["stage"] == "eval"]
    assert all(row["eval/one/asked"] == 2.0 for row in evaluated)
    assert result.summary["tasks"]["one"]["grpo"]["metrics"]["asked"] == 2.0


def test_extra_columns_are_kept_with_the_samples_as_json(everything: tuple[Path, Result]) -> None:
    _, result = everything
    for name in ("grpo-000002", "eval-grpo"):
        text = gzip.decompress((result.folder / "rollouts" / f"{name}.jsonl.gz").read_bytes()).decode()
        rows = [json.loads(line, parse_constant=lambda bare: pytest.fail(f"bare {bare}")) for line in text.splitlines()]
        assert rows
        assert all(row["info"]["length_seen"] == row["length"] for row in rows)
        assert all(row["info"]["odd"]["share"] == "nan" for row in rows)


def test_none_leaves_a_function_out_of_the_sum_and_weights_apply_to_the_rest(everything: tuple[Path, Result]) -> None:
    _, result = everything
    text = gzip.decompress((result.folder / "rollouts" / "grpo-000002.jsonl.gz").read_bytes()).decode()
    rows = [json.loads(line) for line in text.splitlines()]
    for row in rows:
        parts = row["parts"]
        assert row["reward"] == pytest.approx(parts["by_length"] + 2 * parts.get("by_chance", 0.0))
        assert parts["Calls"] in (0.0, 1.0, 2.0)
    for row in steps(result.folder, "grpo"):
        if "rewards/by_chance/mean" in row:  # over the answers that have it, as in TRL
            assert (row["rewards/by_chance/mean"], row["rewards/by_chance/std"]) == (0.5, 0.0)
        assert row["rewards/scheduled/mean"] == (row["step"] - 1) / 4
    write(result.folder)


def test_what_a_reward_logs_takes_no_more_room_as_the_run_goes_on() -> None:
    from levelhead.recipe.tasks import Function
    from levelhead.tasks.function import FunctionTask

    def chatty(completions: list[str], log_metric: Any, log_extra: Any) -> list[float]:
        log_metric("x", 1.0)
        log_extra("y", completions)
        return [1.0] * len(completions)

    made = FunctionTask(Function(kind="function"), data=[{"prompt": "a"}, {"prompt": "b"}], rewards=chatty)
    prompt = next(made.prompts("train", 0))
    quiet = made.rules
    assert quiet is not None
    for task in (made, quiet):
        for _ in range(100):
            task.score(prompt, "z")
    assert len(str(vars(made)["_tally"])) < 400
    assert len(str(vars(quiet)["_tally"])) < 400
    assert made.drain_tally().answers == 100  # what constant answers are scored for is not among it


def test_several_tasks_that_log_one_name_have_it_together_and_apart(tmp_path: Path) -> None:
    given = recipe(tmp_path, **SMALL, grpo__steps=1)
    source = (
        "def {0}(completions, log_metric):\n    log_metric('x', {1})\n    return [float(len(c)) for c in completions]\n"
    )
    file = tmp_path / "two.py"
    file.write_text(source.format("a", 1) + source.format("b", 3), encoding="utf-8")
    for task, name in zip(given["tasks"], "ab", strict=True):
        task["rewards"] = [f"{file}:{name}"]
    (row,) = steps(train(given, out=tmp_path / "run").folder, "grpo")
    assert (row["x"], row["x/one"], row["x/two"]) == (2.0, 1.0, 3.0)


@pytest.mark.parametrize("wrong", ["completions[1:]", "completions * 2", "iter(int, 1)"])
def test_extra_columns_of_another_length_are_an_error(tmp_path: Path, wrong: str) -> None:
    source = (
        f"def reward(completions, log_extra):\n    log_extra('column', {wrong})\n    return [1.0] * len(completions)\n"
    )
    with pytest.raises(RewardError, match=r"reward logged .* values of 'column' \(log_extra\) for 1 completions"):
        train(one_task(tmp_path, source), out=tmp_path / "run")


# Rewards that fail


FAILS = """
import pathlib
calls = pathlib.Path(__file__).with_name("calls")


def reward(prompts, completions, completion_ids, trainer_state, **columns):
    batch = len(completions)
    values = [float(sum(ids) % 5) / 4 for ids in completion_ids]
    if trainer_state.epoch == 1 and not FAIL_IN_EVALUATIONS:
        return values
    if any({when}):
        raise KeyError("no such \\x1b[31mcolumn")
    return values
"""


def failing(folder: Path, when: str, *, evaluations: bool = False, **changes: Any) -> dict[str, Any]:
    source = FAILS.replace("{when}", when).replace("FAIL_IN_EVALUATIONS", str(evaluations))
    given = one_task(folder, source, **changes)
    given["tasks"][0]["on_reward_error"] = "drop"
    return given


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(given: dict[str, Any], *options: str) -> tuple[int, str]:
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(given), encoding="utf-8")
        arguments = ["levelhead", "train", str(path), "--out", str(tmp_path / "run"), *options]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as left:
            main()
        return int(left.value.code or 0), capsys.readouterr().err

    return run


ALWAYS = "True for _ in completions"
MOSTLY = "sum(ids) % 4 for ids in completion_ids"
SELDOM = "sum(ids) % 7 == 0 for ids in completion_ids"


def test_a_reward_that_fails_on_every_answer_stops_the_run_after_three_steps(command: Any, tmp_path: Path) -> None:
    code, err = command(failing(tmp_path, ALWAYS, grpo__steps=8, checkpoint__every=0))
    run = tmp_path / "run"
    assert code == 1
    assert [row["step"] for row in steps(run, "grpo")] == [1, 2, 3]
    assert [row["frac_reward_errors"] for row in steps(run, "grpo")] == [1.0, 1.0, 1.0]
    told = [event for event in events(run) if event["code"] == "reward-errors"]
    assert [(event["step"], event["severity"], event["action"]) for event in told] == [
        (1, "critical", None),
        (2, "critical", None),
        (3, "critical", None),
        (3, "critical", "stop"),
    ]
    assert told[0]["evidence"] == {
        "task": "one",
        "answers": 12,
        "dropped": 12,
        "by": {"reward": 12},
        "cause": "reward-function",
    }
    assert events(run)[-1] == told[-1]
    assert "step 1: critical: reward-errors: one: 12 of 12 answers were dropped" in err
    assert "mine.py:reward raised KeyError: 'no such" in err
    assert "critical: reward-errors [stop]: one: every answer of 3 steps in a row was dropped" in err
    assert "stopped at step 3 by reward-errors" in err.splitlines()[-1]
    assert "tasks[].on_reward_error=stop" in err
    assert "\x1b" not in err
    report = examine(run)
    assert (report.diagnosis.verdict, report.diagnosis.findings[0].code) == ("critical", "reward-errors")
    write(run)
    assert "reward-errors" in (run / "report.html").read_text(encoding="utf-8")


def test_a_run_that_loses_more_than_half_of_its_answers_goes_on_and_says_so(command: Any, tmp_path: Path) -> None:
    code, err = command(failing(tmp_path, MOSTLY))
    run = tmp_path / "run"
    rows = steps(run, "grpo")
    assert code == 0
    assert len(rows) == 4
    assert all(row["frac_reward_errors"] > 0.5 for row in rows)
    assert "critical: reward-errors" in err
    report = examine(run)
    assert (report.diagnosis.verdict, report.diagnosis.findings[0].code) == ("critical", "reward-errors")


def test_a_few_dropped_answers_are_a_note(command: Any, tmp_path: Path) -> None:
    code, err = command(failing(tmp_path, SELDOM))
    run = tmp_path / "run"
    assert code == 0
    shares = [row["frac_reward_errors"] for row in steps(run, "grpo")]
    assert 0 < max(shares) <= 0.5
    told = [event for event in events(run) if event["code"] == "reward-errors"]
    assert {event["severity"] for event in told} == {"info"}
    assert "reward-errors" not in err
    assert "reward-errors" not in [finding.code for finding in examine(run).diagnosis.findings]


def test_steps_that_have_answers_left_start_the_count_again(tmp_path: Path) -> None:
    when = "trainer_state.global_step % 3 < 2 for _ in completions"
    result = train(failing(tmp_path, when, grpo__steps=6), out=tmp_path / "run")
    assert result.outcome == "done"
    assert [row["frac_reward_errors"] for row in steps(result.folder, "grpo")] == [1, 1, 0, 1, 1, 0]


def test_an_evaluation_that_loses_its_answers_is_told(tmp_path: Path) -> None:
    given = failing(tmp_path, "trainer_state.epoch == 1 for _ in completions", evaluations=True)
    result = train(given, out=tmp_path / "run")
    assert result.outcome == "done"
    told = [event for event in events(result.folder) if event["code"] == "reward-errors"]
    assert [(event["step"], event["severity"]) for event in told] == [(0, "critical"), (4, "critical")]
    assert "1 of 1 answers of an evaluation were dropped" in told[0]["message"]


def test_the_count_of_lost_steps_survives_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from levelhead.training.grpo import GrpoTrainer

    given = failing(tmp_path, ALWAYS, grpo__steps=8)
    whole = train(given, out=tmp_path / "whole")
    real = GrpoTrainer.step

    def step(self: GrpoTrainer, step: int) -> Any:
        if step == 3:
            raise RuntimeError("killed")
        return real(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(GrpoTrainer, "step", step)
        with pytest.raises(RuntimeError, match="killed"):
            train(given, out=tmp_path / "run")
    resumed = train(given, out=tmp_path / "run", resume=True)
    assert (resumed.outcome, whole.outcome) == ("stopped", "stopped")
    assert metrics(resumed.folder) == metrics(whole.folder)
    assert same_weights(resumed.model, whole.model)


def test_one_broken_task_of_two_is_named_and_stops_the_run(tmp_path: Path) -> None:
    given = failing(tmp_path, ALWAYS, grpo__steps=8)
    given["tasks"].append({**recipe(tmp_path)["tasks"][1], "on_reward_error": "drop"})
    result = train(given, out=tmp_path / "run")
    assert result.outcome == "stopped"
    rows = steps(result.folder, "grpo")
    assert len(rows) == 3
    for row in rows:
        assert (row["frac_reward_errors/one"], row["frac_reward_errors/two"]) == (1.0, 0.0)
        assert 0 < row["frac_reward_errors"] < 1
        assert math.isfinite(row["grad_norm"])


@pytest.mark.parametrize(("when", "status"), [(ALWAYS, "fail"), (MOSTLY, "warn"), (SELDOM, "pass")])
def test_the_preflight_foresees_it(tmp_path: Path, when: str, status: str) -> None:
    report = check(validate(failing(tmp_path, when, grpo__batch_size=24, grpo__group_size=6)))
    (dropped,) = [one for one in report.checks if one.name == "rewards/dropped/one"]
    assert dropped.status == status
    assert not [one for one in report.checks if one.name == "rewards/error"]


# Rewards that do not come back


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
