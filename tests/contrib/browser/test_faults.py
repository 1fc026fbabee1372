"""Browsers and pages that break, and browsers that would be left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from levelhead.contrib.browser.leftovers import Process, end_leftovers, records_folder
from levelhead.contrib.browser.task import BrowserTask
from levelhead.recipe.environments import Browser
from levelhead.tasks.base import EpisodeLostError

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

PAGES = ["click-test", "click-button", "enter-text"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broken(task: BrowserTask) -> AsyncIterator[BrowserTask]:
    """A task with a browser of its own, for breaking.  (The shared one proves that a browser is there.)"""
    made = BrowserTask(Browser(kind="browser", tasks=PAGES, items=9, pages=2, spare_pages=0, action_timeout=2))
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="module")
async def own(broken: BrowserTask) -> BrowserTask:
    """The task to break, its browser running and nothing to tell."""
    assert await solve(broken) == 1
    broken.drain_events(0)
    return broken


def browser_pid(task: BrowserTask) -> int:
    assert task._pool is not None
    assert task._pool.host is not None
    return task._pool.host.record.browser.pid


def group(pid: int) -> list[int]:
    """Return the living processes of a browser's group, whose id is its own."""
    shown = subprocess.run(["ps", "-eo", "pid=,pgid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in shown.splitlines()]
    return [int(member) for member, of, state in rows if int(of) == pid and not state.startswith("Z")]


def wait_until_gone(pid: int, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not group(pid):
            return True
        time.sleep(0.1)
    return False


def codes(task: BrowserTask) -> list[str]:
    return [event.code for event in task.drain_events(4)]


async def solve(task: BrowserTask, page: str = "click-test", seed: int = 1) -> float:
    _, score = await task.play_oracle(task.prompt(page, seed))
    assert score is not None
    return score.total


async def test_a_killed_browser_costs_the_episodes_it_held_and_nothing_else(own: BrowserTask) -> None:
    held = [own.episode(own.prompt(page, 1)) for page in PAGES[:2]]
    for episode in held:
        await episode.observe()
    pid = browser_pid(own)
    os.kill(pid, signal.SIGKILL)
    for episode in held:
        with pytest.raises(EpisodeLostError):
            await episode.act("click(1)")
        await episode.close()
    assert await solve(own) == 1
    assert browser_pid(own) != pid
    assert wait_until_gone(pid)
    events = own.drain_events(4)
    assert [event.step for event in events] == [4] * len(events)
    assert {"page-lost", "browser-lost"} <= {e.code for e in events}
    assert events[-1].code == "browser-started"


async def test_a_browser_killed_between_episodes_is_replaced_unnoticed(own: BrowserTask) -> None:
    os.kill(browser_pid(own), signal.SIGKILL)
    assert await solve(own) == 1
    assert codes(own)[-1] == "browser-started"


async def test_a_killed_driver_is_replaced_too(own: BrowserTask) -> None:
    pool = own._pool
    assert pool is not None
    assert pool.host is not None
    driver = pool.host.record.driver
    assert driver is not None
    pid = browser_pid(own)
    os.kill(driver.pid, signal.SIGKILL)
    assert await solve(own) == 1
    assert wait_until_gone(pid)


async def test_a_closed_page_costs_its_episode(own: BrowserTask) -> None:
    lost, other = (own.episode(own.prompt("click-test", seed)) for seed in (1, 2))
    await lost.observe()
    await other.observe()
    assert lost.place is not None
    await lost.place.page.close()
    with pytest.raises(EpisodeLostError):
        await lost.act("click(1)")
    step = await other.act("click(1)")
    assert step.score is not None
    assert step.score.total == 1
    assert codes(own) == ["page-lost"]
    assert await solve(own) == 1


async def test_a_page_that_hangs_is_given_up_in_time(own: BrowserTask) -> None:
    episode = own.episode(own.prompt("click-test", 1))
    await episode.observe()
    assert episode.place is not None
    await episode.place.page.evaluate(
        "document.getElementById('subbtn').addEventListener('click', () => { for (;;) ; })"
    )
    started = time.monotonic()
    with pytest.raises(EpisodeLostError, match="did not answer for 2 s"):
        await episode.act("click(1)")
    assert time.monotonic() - started < 60
    assert codes(own) == ["page-hung"]
    assert [await solve(own, page) for page in PAGES] == [1, 1, 1]


async def test_a_crashed_page_costs_its_episode(own: BrowserTask) -> None:
    episode = own.episode(own.prompt("click-test", 1))
    await episode.observe()
    assert episode.place is not None
    crash = asyncio.ensure_future(episode.place.page.goto("chrome://crash"))
    await asyncio.wait([crash], timeout=5)
    with pytest.raises(EpisodeLostError):
        await episode.act("click(1)")
    crash.cancel()
    await episode.close()
    assert await solve(own) == 1


@pytest.mark.parametrize(
    "away", ["location.href = 'about:blank'", "location.href = 'http://192.0.2.1/'", "location.reload()"]
)
async def test_an_action_that_leaves_the_page_fails_its_episode_and_spoils_nothing(own: BrowserTask, away: str) -> None:
    episode = own.episode(own.prompt("enter-text", 1))
    await episode.observe()
    assert episode.place is not None
    await episode.place.page.evaluate(f"document.getElementById('subbtn').onclick = () => {{ {away} }}")
    step = await episode.act("click(2)")
    while not step.done:
        await asyncio.sleep(0.1)
        step = await episode.act("noop()")
    assert step.score is not None
    assert step.score.total == 0
    assert step.score.info["ended"] == "left"
    assert "page-left" in codes(own)
    assert await solve(own, "enter-text") == 1


async def test_a_popup_is_closed_and_the_episode_goes_on(own: BrowserTask) -> None:
    episode = own.episode(own.prompt("click-test", 1))
    await episode.observe()
    assert episode.place is not None
    page = episode.place.page
    await page.evaluate("window.open('about:blank')")
    for _ in range(100):
        if len(page.context.pages) == 1:
            break
        await asyncio.sleep(0.05)
    assert len(page.context.pages) == 1
    step = await episode.act("click(1)")
    assert step.score is not None
    assert step.score.total == 1


async def test_a_page_whose_script_fails_at_the_start_is_lost(own: BrowserTask) -> None:
    assert own._pool is not None
    for tab in own._pool._idle:
        await tab.page.evaluate("void (window.genProblem = () => { throw new Error('boom') })")
    assert await solve(own) == 1  # the oracle's player draws again
    assert "page-broken" in codes(own)


async def test_closing_leaves_no_process_and_the_task_can_start_again(own: BrowserTask) -> None:
    pid = browser_pid(own)
    await own.close()
    assert wait_until_gone(pid)
    assert not list(records_folder().glob(f"{pid}.json"))
    assert await solve(own) == 1


TRAINER = """
import asyncio, sys
from levelhead.recipe.environments import Browser
from levelhead.contrib.browser.task import BrowserTask
task = BrowserTask(Browser(kind="browser", tasks=["click-test"], pages=1, spare_pages=0))
async def main():
    episode = task.episode(task.prompt("click-test", 1))
    await episode.observe()
    record = task._pool.host.record
    print(record.browser.pid, record.driver.pid, flush=True)
    if sys.argv[1] == "wait":
        await asyncio.sleep(100)
    if sys.argv[1] == "raise":
        raise RuntimeError("training failed")
asyncio.run(main())
if sys.argv[1] == "again":
    asyncio.run(main())
    sys.stdin.readline()
"""


class Trainer:
    """A process that opens a page and then ends, fails, waits, or opens another on another event loop."""

    def __init__(self, how: str) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRAINER, how], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )

    def pids(self) -> tuple[int, int]:
        """Wait for the next browser; return its id and its driver's."""
        assert self.process.stdout is not None
        browser, driver = (int(word) for word in self.process.stdout.readline().split())
        return browser, driver

    def end(self, number: int | None = None) -> None:
        """End the process by a signal, or let it end."""
        if number is not None:
            self.process.send_signal(number)
        self.process.communicate("", timeout=60)


@pytest.mark.slow
async def test_no_browser_outlives_its_trainer_however_that_ends(task: BrowserTask) -> None:
    ends = [("end", None), ("raise", None), ("wait", signal.SIGTERM), ("wait", signal.SIGINT), ("wait", signal.SIGKILL)]
    trainers = [(Trainer(how), number) for how, number in ends]
    browsers = [trainer.pids()[0] for trainer, _ in trainers]
    for trainer, number in trainers:
        trainer.end(number)
    assert [wait_until_gone(browser) for browser in browsers] == [True] * len(ends)
    end_leftovers(records_folder())
    assert not {f"{browser}.json" for browser in browsers} & {path.name for path in records_folder().iterdir()}


async def test_each_event_loop_gets_a_browser_and_the_old_one_goes(task: BrowserTask) -> None:
    trainer = Trainer("again")
    (first, _), (second, _) = trainer.pids(), trainer.pids()
    assert wait_until_gone(first)
    assert group(second)
    trainer.end()
    assert wait_until_gone(second)


async def test_only_browsers_whose_trainer_is_gone_are_ended_at_the_next_start(own: BrowserTask) -> None:
    orphaned, other = Trainer("wait"), Trainer("wait")
    (orphan, driver), (browser, _) = orphaned.pids(), other.pids()
    # Stopped processes notice nothing, as hung ones would.
    os.kill(orphan, signal.SIGSTOP)
    os.kill(driver, signal.SIGKILL)
    orphaned.end(signal.SIGKILL)
    assert Process.find(orphan) is not None
    await own.close()
    assert await solve(own) == 1
    assert wait_until_gone(orphan)
    assert Process.find(browser) is not None
    (told,) = (event for event in own.drain_events(0) if event.code == "browser-leftover-ended")
    assert f"ended browser {orphan}," in told.message
    assert not (records_folder() / f"{orphan}.json").exists()
    other.end(signal.SIGKILL)
    assert wait_until_gone(browser)
