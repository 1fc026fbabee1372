from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from levelhead.recipe.sampling import Sampling
from levelhead.records import Prompt
from levelhead.rollout.generators.base import Request
from levelhead.rollout.generators.make import make_generator
from levelhead.training.loop import EventLoop, Waiter
from small_run import tiny_policy


async def name_of_thread(loop: EventLoop) -> str:
    def name() -> str:
        return threading.current_thread().name

    return await asyncio.get_running_loop().run_in_executor(loop.waiter, name)


def test_what_is_handed_to_the_waiter_runs_in_the_thread_that_waits() -> None:
    loop = EventLoop()
    assert loop.run(name_of_thread(loop)) == threading.current_thread().name
    loop.close()


def test_of_two_threads_that_wait_each_is_woken_for_its_own_result() -> None:
    loop = EventLoop()
    names: list[str] = []

    def wait() -> None:
        names.extend(loop.run(name_of_thread(loop)) for _ in range(200))

    threads = [threading.Thread(target=wait, name=f"waits-{i}", daemon=True) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(names) == 600
    assert set(names) <= {thread.name for thread in threads}
    loop.close()


def test_an_error_of_the_work_is_raised_where_its_result_is_awaited() -> None:
    async def fail() -> None:
        await asyncio.get_running_loop().run_in_executor(loop.waiter, int, "seven")

    loop = EventLoop()
    with pytest.raises(ValueError, match="seven"):
        loop.run(fail())
    assert loop.run(name_of_thread(loop))
    loop.close()


def test_an_interrupt_during_the_work_ends_the_wait_and_the_loop_goes_on() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    async def work() -> None:
        await asyncio.get_running_loop().run_in_executor(loop.waiter, interrupted)

    loop = EventLoop()
    with pytest.raises(KeyboardInterrupt):
        loop.run(work())
    assert loop.run(name_of_thread(loop)) == threading.current_thread().name
    loop.close()


def test_work_that_nobody_waits_for_is_left_until_somebody_waits_and_can_be_cancelled() -> None:
    waiter, done = Waiter(), list[int]()
    first, second = waiter.submit(done.append, 1), waiter.submit(done.append, 2)
    assert first.cancel()
    waiter.serve(second)
    assert done == [2]
    with pytest.raises(CancelledError):
        first.result()


def test_a_generator_whose_work_was_lost_to_an_interrupt_can_be_closed() -> None:
    class Loses(Waiter):
        def submit(self, *_: Any, **__: Any) -> Future[Any]:
            return Future()

    async def play() -> None:
        generator = make_generator(policy, Loses())
        waits = asyncio.ensure_future(generator.generate(request))
        await asyncio.sleep(0.01)
        waits.cancel()
        await asyncio.wait([waits])
        await asyncio.wait_for(generator.close(), 10)

    policy = tiny_policy()
    request = Request(Prompt("p", "task", (), (1, 2)), 0, Sampling(max_new_tokens=2), 1, 0)
    asyncio.run(play())
