"""Plays pages of the package browsergym-miniwob through our task; run by a Python that has it, as a program.

It reads each goal, does what it says, and prints one line of JSON: what was shown and how each episode ended.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from levelhead.contrib.browsergym import BrowserGymTask
from levelhead.recipe.environments import BrowserGym


def number(page: str, element: str) -> str:
    """The number of an element on a page."""
    match = re.search(rf"\[(\d+)\] {re.escape(element)}", page)
    assert match is not None, page
    return match[1]


SOLUTIONS: dict[str, Callable[[str], Sequence[Callable[[str], str]]]] = {
    "click-test": lambda _: [lambda page: f"click({number(page, 'button')})"],
    "enter-text": lambda goal: [
        lambda page: f"fill({number(page, 'textbox')}, {goal.split(chr(34))[1]!r})".replace("'", '"'),
        lambda page: f"click({number(page, 'button')})",
    ],
    "choose-list": lambda goal: [
        lambda page: f'select({number(page, "combobox")}, "{goal.removeprefix("Select ").split(" from the list")[0]}")',
        lambda page: f"click({number(page, 'button')})",
    ],
}


async def play(task: BrowserGymTask, page: str, seed: int) -> dict[str, Any]:
    """Play one episode by the page's solution."""
    episode = task.episode(task.prompt(f"browsergym/miniwob.{page}", seed))
    shown = str((await episode.observe())[-1]["content"])
    goal, seen = shown.split("Goal: ")[1].split("\n")[0], [shown]
    for act in SOLUTIONS[page](goal):
        step = await episode.act(act(seen[-1]))
        if step.score is not None:
            return {"page": page, "total": step.score.total, "seen": seen, "events": len(task.drain_events(0))}
        seen.append(str((await episode.observe())[-1]["content"]))
    await episode.close()
    return {"page": page, "total": None, "seen": seen, "events": len(task.drain_events(0))}


async def main() -> None:
    """Play the pages that are named."""
    names = [f"browsergym/miniwob.{page}" for page in sys.argv[1:]]
    task = BrowserGymTask(BrowserGym(kind="browsergym", tasks=names))
    played = [await play(task, page, 1) for page in sys.argv[1:]]
    await task.close()
    print(json.dumps(played))


if __name__ == "__main__":
    asyncio.run(main())
