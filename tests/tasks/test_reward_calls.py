"""Whatever a reward function does when called (leave, block, never end), the wait for it ends with its name."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from levelhead.errors import InputError, RewardError
from levelhead.recipe import validate
from levelhead.recipe.tasks import Function
from levelhead.records import Score
from levelhead.tasks.base import Answer
from levelhead.tasks.function import FunctionTask

ROWS = [{"prompt": f"Say {word}.", "solution": word} for word in "abcdefgh"]
SOON = 0.3


def task(*rewards: Any, **keys: Any) -> FunctionTask:
    section = Function.model_validate({"kind": "function", "reward_timeout_s": 20.0, **keys})
    return FunctionTask(section, data=ROWS, rewards=list(rewards))


def score(made: FunctionTask, *texts: str) -> list[Score | None]:
    prompts = [prompt for split in ("train", "eval") for prompt in made.prompts(split, 0)]  # type: ignore[arg-type]
    return asyncio.run(made.score_batch([Answer(p, text) for p, text in zip(prompts, texts, strict=False)]))


def both(body: Callable[..., Any]) -> list[Any]:
    """The same reward as a plain function, as a coroutine, and as an object and a partial that return one."""

    def odd(completions: list[str], **_: Any) -> Any:
        return body(completions)

    async def odd_later(completions: list[str], **_: Any) -> Any:
        return body(completions)

    class Odd:
        async def __call__(self, completions: list[str], **_: Any) -> Any:
            return body(completions)

    def hands_out(completions: list[str], **_: Any) -> Any:
        return odd_later(completions)

    return [odd, odd_later, Odd(), functools.partial(odd_later), hands_out]


KINDS = range(5)


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Lets go of what a test has left blocked."""
    event = threading.Event()
    yield event
    event.set()


# Everything that can be raised


class Own(BaseException):
    """Neither an Exception nor known to anybody."""


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def leave() -> None:
    sys.exit(3)


def raising(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


LEAVING = {
    "SystemExit: 3": leave,
    "SystemExit": raising(SystemExit()),
    "KeyboardInterrupt": raising(KeyboardInterrupt()),
    "GeneratorExit": raising(GeneratorExit()),
    "CancelledError": raising(asyncio.CancelledError()),
    "StopIteration": raising(StopIteration()),
    "StopAsyncIteration": raising(StopAsyncIteration()),
    "TimeoutError": raising(TimeoutError()),
    "MemoryError": raising(MemoryError()),
    "ExceptionGroup": raising(ExceptionGroup("many", [ValueError("one")])),
    "BaseExceptionGroup": raising(BaseExceptionGroup("many", [SystemExit(1)])),
    "Own: gone": raising(Own("gone")),
    "UnprintableError": raising(UnprintableError()),
    "ValueError: half \\ud800": raising(ValueError("half \ud800")),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("named", LEAVING)
def test_whatever_is_raised_is_an_error_with_the_functions_name(named: str, kind: int) -> None:
    def body(completions: list[str]) -> list[float]:
        for text in completions:
            if text == "culprit":
                LEAVING[named]()
        return [1.0] * len(completions)

    reward = both(body)[kind]
    wanted = "RuntimeError" if kind and named == "StopIteration" else named
    with pytest.raises(RewardError) as caught:
        score(task(reward), "fine", "culprit")
    said = str(caught.value).splitlines()[0]
    assert f"raised {wanted}" in said
    assert {0: "function odd ", 2: "function Odd ", 4: "function hands_out "}.get(kind, "function odd_later ") in said
    assert "completion 'culprit'" in said
    assert "test_reward_calls.py, line" in said
    said.encode()
    dropping = task(reward, on_reward_error="drop")
    assert [one is None for one in score(dropping, "fine", "culprit", "fine")] == [False, True, False]


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_goes_on_after_a_reward_has_left(kind: int) -> None:
    calls = itertools.count()

    def body(completions: list[str]) -> list[float]:
        if next(calls) < 2:
            sys.exit(1)
        return [1.0] * len(completions)

    made = task(both(body)[kind])
    with pytest.raises(RewardError, match="SystemExit"):
        score(made, "a")
    assert [one and one.total for one in score(made, "a", "b")] == [1.0, 1.0]


def test_a_task_of_the_rewards_own_that_leaves_ends_no_wait_for_ever() -> None:
    async def spawns(completions: list[str], **_: Any) -> list[float]:
        async def inner() -> None:
            sys.exit(5)

        task = asyncio.create_task(inner())
        await asyncio.sleep(600)
        await task
        return [1.0]

    async def fine(completions: list[str], **_: Any) -> list[float]:
        return [1.0] * len(completions)

    with pytest.raises(RewardError, match="spawns raised SystemExit"):
        score(task(spawns), "a")
    assert [one and one.total for one in score(task(fine), "a")] == [1.0]


# What never ends


def endless() -> Iterator[float]:
    while True:
        yield 1.0


RESULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "an endless generator": (endless, "returned more than 2 values for 2 completions"),
    "itertools.repeat": (lambda: itertools.repeat(1.0), "returned more than 2 values for 2 completions"),
    "a short generator": (lambda: (x for x in [1.0]), "returned 1 values for 2 completions"),
    "a long list": (lambda: [1.0] * 5, "returned 5 values for 2 completions"),
    "a huge range": (lambda: range(10**15), f"returned {10**15} values for 2 completions"),
    "an iterator that breaks": (lambda: (1 / x for x in [1, 0]), "raised ZeroDivisionError"),
    "an iterator that leaves": (lambda: (sys.exit(2) for _ in [1, 0]), "raised SystemExit: 2"),
    "an asynchronous generator": (lambda: _later(), "returned async_generator where a list of 2 numbers"),
    "a class": (lambda: list, "returned type where a list of 2 numbers"),
    "a set, which has no order": (lambda: {0.5, 1.0}, "returned set where a list of 2 numbers"),
    "keys": (lambda: {0.5: 1, 1.0: 2}.keys(), "returned dict_keys where a list of 2 numbers"),
    "numbers that are none": (lambda: [object(), 1.0], "returned object where a number was wanted"),
    "complex numbers": (lambda: [1j, 1.0], "returned complex where a number was wanted"),
    "a number too large": (lambda: [10**400, 1.0], "returned int where a number was wanted"),
    "NaN": (lambda: [float("nan"), 1.0], "returned nan"),
}


async def _later() -> Any:
    yield 1.0


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("name", RESULTS)
def test_results_are_read_up_to_the_number_of_answers_and_named(name: str, kind: int) -> None:
    make, says = RESULTS[name]
    with pytest.raises(RewardError) as caught:
        score(task(both(lambda _: make())[kind]), "a", "b")
    said = str(caught.value)
    # What fails for one answer alone is named so; what only fails together is named with both.
    alone = says.replace("2 values", "1 values").replace("2 comp", "1 comp").replace("of 2", "of 1")
    assert says in said or alone in said


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_takes_too_long_is_an_error_that_says_so(kind: int, released: threading.Event) -> None:
    def body(completions: list[str]) -> list[float]:
        released.wait(60)
        return [1.0] * len(completions)

    start = time.monotonic()
    with pytest.raises(RewardError) as caught:
        score(task(both(body)[kind], reward_timeout_s=SOON), "a", "b", "c")
    assert time.monotonic() - start < 10
    said = str(caught.value)
    assert "took longer than 0.3 s (tasks[].reward_timeout_s) on 3 answers" in said
    assert "raise tasks[].reward_timeout_s" in said
    assert "test_reward_calls.py, line" in said  # where it was
    assert "a batch of 3 answers, the first of them data, row" in said


@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_batch_is_dropped_whole_and_not_tried_again_answer_by_answer(
    kind: int, released: threading.Event
) -> None:
    calls = []

    def body(completions: list[str]) -> list[float]:
        calls.append(len(completions))
        if len(calls) == 1:
            released.wait(60)
        return [1.0] * len(completions)

    made = task(both(body)[kind], reward_timeout_s=SOON, on_reward_error="drop")
    assert score(made, "a", "b", "c") == [None, None, None]
    assert calls == [3]
    tally = made.drain_tally()
    assert (tally.answers, tally.dropped) == (3, 3)
    assert "took longer than" in tally.error
    assert [one and one.total for one in score(made, "a", "b")] == [1.0, 1.0]


async def test_a_coroutine_that_only_waits_is_cancelled_and_its_loop_lives_on() -> None:
    loops = []
    ended = []

    async def waits(completions: list[str], **_: Any) -> list[float]:
        loops.append(asyncio.get_running_loop())
        try:
            await asyncio.sleep(600 if len(loops) == 1 else 0)
        finally:
            ended.append(1)
        return [1.0] * len(completions)

    made = task(waits, reward_timeout_s=SOON, on_reward_error="drop")
    prompt = next(made.prompts("train", 0))
    assert await made.score_batch([Answer(prompt, "a")]) == [None]
    assert ended == [1]
    assert (await made.score_batch([Answer(prompt, "a")]))[0] is not None
    assert loops[0] is loops[1]


def test_a_loop_of_python_that_was_given_up_ends() -> None:
    turns = []

    def spins(completions: list[str], **_: Any) -> list[float]:
        while True:
            turns.append(1)

    with pytest.raises(RewardError, match="took longer"):
        score(task(spins, reward_timeout_s=SOON), "a")
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        before = len(turns)
        time.sleep(0.05)
        if len(turns) == before:
            return
    pytest.fail("the thread runs on")


def test_finding_the_answer_to_blame_takes_no_longer_than_one_call_may(released: threading.Event) -> None:
    def slow(completions: list[str], **_: Any) -> list[float]:
        if len(completions) > 1:
            raise ValueError("all together")
        alone.extend(completions)
        released.wait(0.2)
        return [1.0]

    alone: list[str] = []
    with pytest.raises(RewardError, match=r"raised ValueError: all together.*but on none of those tried alone"):
        score(task(slow, reward_timeout_s=0.5), *"abcdefgh")
    assert 0 < len(alone) < 8, "eight calls of 0.2 s take longer than one call may, 0.5 s"


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), 1e9, "soon"])
def test_a_timeout_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="reward_timeout_s"):
        validate({"tasks": [{"kind": "function", "path": "x.jsonl", "reward_timeout_s": value}]})


def test_the_default_is_ten_minutes_and_null_waits_for_ever() -> None:
    assert Function(kind="function").reward_timeout_s == 600
    assert Function(kind="function", reward_timeout_s=None).reward_timeout_s is None
    assert score(task(lambda completions, **_: [1.0], reward_timeout_s=None), "a")[0] is not None


# What functions may rely on


def test_plain_functions_run_one_after_another_and_before_the_asynchronous_ones() -> None:
    order: list[str] = []

    def make(name: str) -> Any:
        def one(completions: list[str], **_: Any) -> list[float]:
            order.append(f"{name}(")
            time.sleep(0.02)
            order.append(f"){name}")
            return [1.0] * len(completions)

        return one

    async def later(completions: list[str], **_: Any) -> list[float]:
        order.append("later")
        return [1.0] * len(completions)

    score(task(later, make("a"), make("b")), "x")
    assert order == ["a(", ")a", "b(", ")b", "later"]


def test_a_connection_opened_in_one_call_serves_the_next() -> None:
    opened: list[sqlite3.Connection] = []

    def counts(completions: list[str], **_: Any) -> list[float]:
        if not opened:
            opened.append(sqlite3.connect(":memory:"))
        return [float(opened[0].execute("select 7").fetchone()[0])] * len(completions)

    made = task(counts)
    assert [score(made, "x")[0].total for _ in range(3)] == [7.0] * 3  # type: ignore[union-attr]


def test_a_plain_function_may_run_a_loop_of_its_own() -> None:
    async def asks() -> float:
        await asyncio.sleep(0)
        return 2.0

    def runs(completions: list[str], **_: Any) -> list[float]:
        return [asyncio.run(asks()) for _ in completions]

    assert [one and one.total for one in score(task(runs), "x", "y")] == [2.0, 2.0]


def test_many_calls_need_few_threads() -> None:
    made = task(lambda completions, **_: [1.0] * len(completions))
    score(made, "x")
    before = threading.active_count()
    for _ in range(50):
        score(made, "x")
    assert threading.active_count() < before + 10


# The process


def run(tmp_path: Path, code: str, *, interrupt: bool = False, timeout: float = 60.0) -> tuple[int, str, float]:
    """Run a script in a process of its own; returns exit code, stderr and the seconds from the interrupt to the end."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code), encoding="utf-8")
    ready = tmp_path / "ready"
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "READY": str(ready)},
    )
    start = time.monotonic()
    if interrupt:
        while not ready.exists() and time.monotonic() - start < timeout:
            time.sleep(0.02)
        time.sleep(0.2)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, err, time.monotonic() - start


HEAD = """
    import asyncio, os, re, sys, time
    from levelhead.recipe.tasks import Function
    from levelhead.tasks import main_thread as calls
    from levelhead.tasks.base import Answer
    from levelhead.tasks.function import FunctionTask

    def score(reward, **keys):
        made = FunctionTask(Function(kind="function", **keys), data=[{"prompt": c} for c in "abcd"], rewards=reward)
        prompt = next(made.prompts("train", 0))
        return asyncio.run(made.score_batch([Answer(prompt, "x")]))
"""


def test_a_process_ends_though_a_call_blocks_for_ever(tmp_path: Path) -> None:
    body = """
    def blocks(completions, **_):
        time.sleep(3600)

    try:
        score(blocks, reward_timeout_s=0.3)
    except Exception as error:
        print(error, file=sys.stderr)
    """
    code, err, seconds = run(tmp_path, HEAD + body)
    assert (code, "took longer than 0.3 s" in err) == (0, True)
    assert seconds < 30


def test_code_that_keeps_the_interpreter_to_itself_ends_the_process_with_the_line(tmp_path: Path) -> None:
    body = """
    def matches(completions, **_):
        re.match(r"(a+)+$", "a" * 60 + "b")

    calls.LAST_RESORT_S = 0.5
    score(matches, reward_timeout_s=0.3)
    """
    code, err, _ = run(tmp_path, HEAD + body)
    assert code == 1
    assert "Timeout" in err
    assert "script.py" in err
    assert "in matches" in err
