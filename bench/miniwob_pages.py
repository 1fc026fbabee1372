"""Load and reset every MiniWoB++ page, let its oracle play, and write down what works.

    python bench/miniwob_pages.py --seeds 20 --markdown docs/browser-pages.md

A page is consistent if a seed gives the same goal and page whatever was played before it, in another order and in
another browser page.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from levelhead.contrib.browser.actions import Action, ActionError
from levelhead.contrib.browser.host import Pool
from levelhead.contrib.browser.oracles import ORACLES
from levelhead.contrib.browser.pages import TabLostError, page_names
from levelhead.contrib.browser.task import BrowserTask
from levelhead.recipe.environments import Browser
from levelhead.tasks.base import EpisodeLostError


@dataclass(frozen=True, slots=True)
class Row:
    """What is known about one page."""

    page: str
    loads: bool
    resets: bool
    consistent: bool
    elements: float
    characters: float
    oracle: str
    steps: float | None
    note: str = ""


async def views(pool: Pool, page: str, seeds: Sequence[int], noise: random.Random) -> dict[int, list[str]]:
    """Reset a page to each seed in turn, doing something at random after each, and return what was seen."""
    seen: dict[int, list[str]] = {}
    for seed in seeds:
        tab = await pool.lend(page)
        fit = True
        try:
            view = await tab.reset(seed)
            seen.setdefault(seed, []).append(f"{view.goal}\n{view.text}")
            for _ in range(2):
                clickable = [element.ref for element in view.elements]
                if clickable and not view.done and not view.stray:
                    with contextlib.suppress(ActionError):
                        view = await tab.perform(Action("click", noise.choice(clickable)))
        except BaseException:
            fit = False
            raise
        finally:
            await pool.give_back(tab, fit=fit)
    return seen


async def survey(task: BrowserTask, pools: Sequence[Pool], page: str, seeds: int) -> Row:
    """Try one page."""
    noise = random.Random(page)
    try:
        for pool in pools:
            await pool.give_back(await pool.lend(page), fit=True)
    except TabLostError as error:
        return Row(page, False, False, False, 0, 0, "", None, str(error))
    try:
        orders = ([1, 2, 3, 1], [3, 2, 2, 1])
        seen = [await views(pool, page, order, noise) for pool, order in zip(pools, orders, strict=True)]
    except TabLostError as error:
        return Row(page, True, False, False, 0, 0, "", None, str(error))
    texts = {seed: {text for run in seen for text in run.get(seed, [])} for seed in (1, 2, 3)}
    consistent = all(len(variants) == 1 for variants in texts.values())
    characters = max(len(text) for variants in texts.values() for text in variants)
    elements = max(text.count("\n[") + text.count(" [") for variants in texts.values() for text in variants)
    solved, steps, note = await play(task, page, seeds)
    oracle = f"{solved}/{seeds}" if page in ORACLES else ""
    return Row(page, True, True, consistent, elements, characters, oracle, steps, note)


async def play(task: BrowserTask, page: str, seeds: int) -> tuple[int, float | None, str]:
    """Let the oracle play; return the successes, the mean steps, and the seeds it failed on."""
    if page not in ORACLES:
        return 0, None, ""
    lengths, failed = [], []
    for seed in range(seeds):
        try:
            turns, score = await task.play_oracle(task.prompt(page, seed))
        except (EpisodeLostError, LookupError) as error:
            failed.append(f"{seed} ({type(error).__name__})")
            continue
        if score is not None and score.total == 1:
            lengths.append(len(turns))
        else:
            failed.append(str(seed))
    mean = sum(lengths) / len(lengths) if lengths else None
    return len(lengths), mean, f"oracle fails on seeds {', '.join(failed)}" if failed else ""


def markdown(rows: Sequence[Row]) -> str:
    """Write the rows as a table."""
    yes = {True: "yes", False: "no"}
    lines = [
        "| page | loads | resets | same seed, same page | characters | oracle | steps | note |",
        "|---|" + "---|" * 7,
    ]
    lines += [
        f"| {row.page} | {yes[row.loads]} | {yes[row.resets]} | {yes[row.consistent]} | {row.characters:.0f} "
        f"| {row.oracle} | {'' if row.steps is None else f'{row.steps:.1f}'} | {row.note} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


async def main() -> None:
    """Run the survey."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", help="pages to try; all unless given")
    parser.add_argument("--seeds", type=int, default=20, help="seeds the oracle plays")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args()
    pages = options.pages or list(page_names())
    task = BrowserTask(Browser(kind="browser", tasks=pages, items=2, pages=2))
    report = lambda code, message: print(f"{code}: {message}", file=sys.stderr)  # noqa: E731
    pools = [Pool(1, 0, 5.0, None, report) for _ in range(2)]
    rows = []
    started = time.monotonic()
    for page in pages:
        row = await survey(task, pools, page, options.seeds)
        rows.append(row)
        print(f"{time.monotonic() - started:6.1f}s {json.dumps(asdict(row))}", file=sys.stderr)
    for pool in pools:
        await pool.close()
    await task.close()
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    if options.markdown:
        options.markdown.write_text(markdown(rows))
    else:
        print(markdown(rows))


if __name__ == "__main__":
    asyncio.run(main())
