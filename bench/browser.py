"""How fast the browser task plays: reset and step times, episodes a second with several pages at work.

    python bench/browser.py --pages 1 2 4

The oracle plays, so that no policy's time is in the figures.  CPU seconds are those of this process, Playwright's
driver and the browser together: on a busy machine they say more than seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from levelhead.contrib.browser.oracles import ORACLES
from levelhead.contrib.browser.task import BrowserTask
from levelhead.recipe.environments import BROWSER_TASKS, Browser


def cpu_seconds(group: int, *others: int) -> float:
    """Return the CPU seconds used so far by a process group and some further processes."""
    ticks = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group or int(folder.name) in others:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def single(task: BrowserTask, pages: Sequence[str], rounds: int) -> dict[str, float]:
    """Time resets and steps with one page at work, in milliseconds."""
    resets, steps = [], []
    for page in pages:
        tab = await task.pool().lend(page)
        for seed in range(rounds):
            start = time.perf_counter()
            view = await tab.reset(seed)
            resets.append(time.perf_counter() - start)
            step = 1
            while not view.done and step < 10:
                action = ORACLES[page](view, step)
                start = time.perf_counter()
                view = await tab.perform(action)
                steps.append(time.perf_counter() - start)
                step += 1
        await task.pool().give_back(tab, fit=True)
    return {
        "reset_ms": 1e3 * statistics.median(resets),
        "reset_ms_p95": 1e3 * sorted(resets)[int(0.95 * len(resets))],
        "step_ms": 1e3 * statistics.median(steps),
        "step_ms_p95": 1e3 * sorted(steps)[int(0.95 * len(steps))],
    }


async def many(task: BrowserTask, pages: Sequence[str], episodes: int, workers: int) -> dict[str, float]:
    """Play episodes on several pages at once."""
    work = iter([(page, seed) for seed, page in zip(range(episodes), itertools.cycle(pages), strict=False)])
    steps = 0

    async def worker() -> None:
        nonlocal steps
        for page, seed in work:
            turns, score = await task.play_oracle(task.prompt(page, seed))
            assert score is not None
            assert score.total == 1
            steps += len(turns)

    host = task.pool().host
    assert host is not None
    mine = (host.record.browser.pid, os.getpid(), host.record.driver.pid if host.record.driver else 0)
    cpu, start = cpu_seconds(*mine), time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(workers)))
    seconds, cpu = time.perf_counter() - start, cpu_seconds(*mine) - cpu
    return {
        "episodes_per_s": episodes / seconds,
        "steps_per_s": steps / seconds,
        "cpu_ms_per_episode": 1e3 * cpu / episodes,
    }


async def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(BROWSER_TASKS))
    parser.add_argument("--pages", nargs="+", type=int, default=[1, 2, 4], help="pages at work")
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=30, help="resets a task when timing one page")
    options = parser.parse_args()
    for pages in options.pages:
        spare = pages * len(options.tasks)
        task = BrowserTask(Browser(kind="browser", tasks=options.tasks, pages=pages, spare_pages=spare))
        await many_warm(task, options.tasks, pages)
        result: dict[str, float] = {"pages": pages}
        if pages == 1:
            result |= await single(task, options.tasks, options.rounds)
        result |= await many(task, options.tasks, options.episodes, pages)
        print(json.dumps({name: round(value, 1) for name, value in result.items()}))
        await task.close()


async def many_warm(task: BrowserTask, tasks: Sequence[str], pages: int) -> None:
    """Open every page once, so that loading is not in the figures."""
    await task.pool().running()
    for name in tasks:
        tabs = [await task.pool().lend(name) for _ in range(pages)]
        for tab in tabs:
            await task.pool().give_back(tab, fit=True)


if __name__ == "__main__":
    asyncio.run(main())
