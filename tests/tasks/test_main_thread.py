"""A plain reward function may use whatever works in the main thread alone, and what it changes is a copy."""

from __future__ import annotations

import asyncio
import contextlib
import decimal
import functools
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from levelhead import Recipe
from levelhead.errors import InputError, RewardError
from levelhead.recipe import validate
from levelhead.recipe.tasks import Function
from levelhead.records import Score
from levelhead.tasks.base import Answer, SingleTurnTask
from levelhead.tasks.function import FunctionTask
from levelhead.training.loop import EventLoop

ROWS = [{"prompt": f"Say {n}.", "tags": ["x", "y"], "info": {"n": [n]}, "other": (1, [2])} for n in range(8)]


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    """The event loop of a run: it has a thread of its own, and the main thread waits for it."""
    loop = EventLoop()
    yield loop
    loop.close()


def task(*rewards: Any, **keys: Any) -> FunctionTask:
    section = Function.model_validate({"kind": "function", "reward_timeout_s": 20.0, **keys})
    return FunctionTask(section, data=ROWS, rewards=list(rewards))


def score(loop: EventLoop, made: SingleTurnTask, *texts: str) -> list[float | None]:
    prompts = [prompt for split in ("train", "eval") for prompt in made.prompts(split, 0)]  # type: ignore[arg-type]
    answers = [Answer(prompt, text) for prompt, text in zip(prompts, texts, strict=False)]
    return [one and one.total for one in loop.run(made.score_batch(answers))]


def caught(body: Callable[[], float]) -> Callable[..., list[float]]:
    """A reward that is 0 wherever its body raises, as many are written."""

    def reward(completions: list[str], **_: Any) -> list[float]:
        values = []
        for _text in completions:
            try:
                values.append(body())
            except Exception:
                values.append(0.0)
        return values

    return reward


def with_an_alarm() -> float:
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(5)
    try:
        return 1.0
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def with_a_timer() -> float:
    def late(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        threading.Event().wait(10)
    except TimeoutError:
        return 1.0
    finally:
        signal.signal(signal.SIGALRM, before)
    return 0.0


CONNECTION = sqlite3.connect(":memory:")
ROUGH = decimal.Context(prec=3)


def with_a_connection_opened_at_import() -> float:
    return float(CONNECTION.execute("select 1").fetchone()[0])


def with_a_decimal_context() -> float:
    return float(decimal.getcontext().prec == 3)


def with_a_loop_of_its_own() -> float:
    async def one() -> float:
        return 1.0

    return asyncio.run(one())


BODIES = (
    with_an_alarm,
    with_a_timer,
    with_a_connection_opened_at_import,
    with_a_decimal_context,
    with_a_loop_of_its_own,
)


@pytest.mark.parametrize("body", BODIES)
def test_what_works_in_the_main_thread_alone_works_in_a_reward(loop: EventLoop, body: Callable[[], float]) -> None:
    with decimal.localcontext(ROUGH):
        assert score(loop, task(caught(body)), "a", "b") == [1.0, 1.0]


@pytest.mark.parametrize("body", BODIES)
async def test_it_does_so_where_the_main_thread_runs_the_loop_itself(body: Callable[[], float]) -> None:
    made = task(caught(body))
    prompt = next(made.prompts("train", 0))
    with decimal.localcontext(ROUGH):
        (value,) = await made.score_batch([Answer(prompt, "a")])
        assert value is not None
        assert value.total == 1
        assert made.score(prompt, "a").total == 1


def test_a_task_of_ones_own_is_scored_in_the_main_thread_too(loop: EventLoop) -> None:
    class Own(SingleTurnTask):
        name = "own"

        def prompts(self, split: Any, seed: int) -> Any:
            return task(caught(with_an_alarm)).prompts(split, seed)

        def score(self, prompt: Any, text: str) -> Score:
            return Score(with_an_alarm())

    assert score(loop, Own(), "a", "b") == [1.0, 1.0]


def test_a_call_is_interrupted_in_the_main_thread_when_its_time_is_up(loop: EventLoop) -> None:
    class Swallows:
        tries = 0

        def __call__(self, completions: list[str], **_: Any) -> list[float]:
            for _try in range(2):
                try:
                    threading.Event().wait(30)
                except BaseException:
                    self.tries += 1
            return [1.0] * len(completions)

    slow = Swallows()
    with pytest.raises(RewardError, match=r"took longer than 0\.2 s"):
        score(loop, task(slow, reward_timeout_s=0.2), "a")
    assert slow.tries == 2
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL


def test_an_interrupt_reaches_the_run_though_the_reward_swallows_it(loop: EventLoop) -> None:
    def swallows(completions: list[str], **_: Any) -> list[float]:
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGINT)
        return [1.0] * len(completions)

    with pytest.raises(KeyboardInterrupt):
        score(loop, task(swallows), "a")
    assert score(loop, task(caught(with_an_alarm)), "a") == [1.0]


def test_outside_the_main_thread_the_use_of_signals_is_named(caught_errors: list[BaseException]) -> None:
    def in_thread() -> None:
        loop = EventLoop()
        try:
            score(loop, task(caught(with_an_alarm)), "a")
        except BaseException as error:
            caught_errors.append(error)
        finally:
            loop.close()

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join(30)
    (error,) = caught_errors
    assert isinstance(error, RewardError)
    assert "uses signals" in str(error)
    assert "test_main_thread.py, line" in str(error)


@pytest.fixture
def caught_errors() -> list[BaseException]:
    return []


# Promise 9: no reward call sees what another has changed


def changes_all(
    completions: list[str], prompts: list[Any], tags: list[Any], info: list[Any], other: list[Any], **_: Any
) -> list[float]:
    values = [float(len(t) + i["n"][0] + len(o[1])) for t, i, o in zip(tags, info, other, strict=True)]
    for t, i, o, p in zip(tags, info, other, prompts, strict=True):
        t.pop()
        i["n"][0] += 1000
        o[1].clear()
        if not isinstance(p, str):
            p[0]["content"] = [{"text": "changed"}]
    tags.clear()
    completions.clear()
    return values


def test_a_reward_that_changes_its_columns_changes_nothing_else(loop: EventLoop) -> None:
    made = task(changes_all, functools.partial(changes_all), name="copies")
    prompt = next(made.prompts("train", 0))
    answers = [Answer(prompt, text) for text in "abc"]  # of one row: not even they share it
    first, second = (loop.run(made.score_batch(answers)) for _ in range(2))
    assert [one and one.parts for one in first] == [one and one.parts for one in second]
    assert len({one and one.total for one in first}) == 1
    assert all(set(one.parts.values()) == {2.0 + prompt.facts["row"]} for one in first if one is not None)
    assert all(row["tags"] == ["x", "y"] and row["info"]["n"][0] < 8 for row in ROWS)


def test_what_cannot_be_copied_is_handed_over_as_it_is(loop: EventLoop) -> None:
    lock = threading.Lock()
    made = FunctionTask(
        Function(kind="function"),
        data=[{"prompt": str(n), "lock": lock} for n in range(4)],
        rewards=lambda completions, lock, **_: [float(one is LOCKS[0]) for one in lock],
    )
    LOCKS.append(lock)
    assert score(loop, made, "a") == [1.0]


LOCKS: list[Any] = []


@pytest.mark.parametrize("rewards", [{len, max}, frozenset({len}), {"a": len}, "rewards.py:r"])
def test_rewards_without_an_order_are_refused(rewards: Any) -> None:
    with pytest.raises(InputError, match="list of functions"):
        FunctionTask(Function(kind="function"), data=ROWS, rewards=rewards)


def test_a_set_in_a_recipe_is_refused_by_its_key() -> None:
    keys: dict[str, Any] = {"tasks": [{"kind": "function", "path": "d.jsonl", "rewards": {"a.py:f", "b.py:g"}}]}
    with pytest.raises(InputError, match=r"tasks\.0\.rewards: a list is wanted"):
        validate(keys)
    with pytest.raises(ValueError, match="a list is wanted"):
        Recipe.model_validate(keys)
