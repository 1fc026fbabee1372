"""A browser episode played again from what a rollout holds, with a picture of the page before each action.

A MiniWoB++ page, its seed and the actions fix an episode, so that no pictures need to be taken while training: any run
that has ever been made can be looked at.  Only pages of the package ``miniwob`` are opened, as in training.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections import OrderedDict
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from levelhead.documents import dump_json
from levelhead.errors import InputError
from levelhead.report.series import number

if TYPE_CHECKING:
    from levelhead.contrib.browser.tab import Tab
    from levelhead.contrib.browser.view import View

MOST_TURNS = 60
"""Actions of an episode that are played."""
SECONDS = 60.0
"""After which an episode is given up."""

_ACTION_SECONDS = 10.0
_REMEMBERED = 32
_SAME = 1e-6
_WIDTH, _HEIGHT = 160, 210
"""Where a MiniWoB++ page draws; beside it stand its own counters."""


def can_replay(row: Mapping[str, Any]) -> bool:
    """Whether a rollout is an episode of the browser task, and the packages that play it are here."""
    info = row.get("info")
    if not isinstance(info, Mapping) or not isinstance(info.get("page"), str) or "raw_reward" not in info:
        return False
    seed = info.get("seed")
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**53:
        return False
    if find_spec("playwright") is None or find_spec("miniwob") is None:
        return False
    from levelhead.contrib.browser.pages import page_names

    return info["page"] in page_names()


def turns_of(row: Mapping[str, Any]) -> list[str]:
    """Return what the policy wrote, turn by turn.

    ``turns`` of a rollout holds the length of each; a rollout of before it was written is parted at blank lines.
    """
    text, lengths = str(row.get("completion", "")), row.get("turns")
    if isinstance(lengths, list) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in lengths):
        ends, at = [], 0
        for length in lengths:
            ends.append(text[at : at + length])
            at += length + len("\n\n")
        return ends
    return [turn for turn in text.split("\n\n") if turn.strip()]


def replay(row: Mapping[str, Any]) -> dict[str, Any]:
    """Play a rollout's episode again and picture each page.

    Args:
        row: A rollout for which :func:`can_replay` holds.

    Returns:
        ``frames``, each with the picture of the page as a ``data:`` address, the ``action`` that was taken on it and
        the ``error`` that it met; where the page did not end the episode, a last one without an action shows what was
        left.  ``reward`` is the page's raw reward of this playing, ``same`` says whether it is that of the rollout.

    Raises:
        InputError: The browser cannot be started, or the page broke.
    """
    return asyncio.run(asyncio.wait_for(_replay(row), SECONDS))


class Episodes:
    """Plays episodes one at a time and remembers the last few."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._played: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def can_play(self, row: Mapping[str, Any]) -> bool:
        """Return whether a rollout can be played again (:func:`can_replay`)."""
        return can_replay(row)

    def play(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the pictures of an episode (:func:`replay`), from memory where it was played before."""
        key = dump_json([row["info"]["page"], row["info"]["seed"], row["info"]["raw_reward"], turns_of(row)])
        with self._lock:
            if key not in self._played:
                self._played[key] = replay(row)
                while len(self._played) > _REMEMBERED:
                    self._played.popitem(last=False)
            return self._played[key]


async def _replay(row: Mapping[str, Any]) -> dict[str, Any]:
    from levelhead.contrib.browser.host import Host
    from levelhead.contrib.browser.pages import TabLostError

    info = row["info"]
    host = await Host.start(None, lambda _code, _message: None)
    try:
        tab = await host.new_tab(_ACTION_SECONDS)
        await tab.load(info["page"])
        view = await tab.reset(info["seed"])
        frames, view = await _frames(tab, view, turns_of(row)[:MOST_TURNS])
    except TabLostError as error:
        raise InputError(f"{info['page']}, seed {info['seed']}: {error}") from error
    finally:
        await host.close()
    reward = view.reward if view.done else 0.0
    recorded = number(info.get("raw_reward"))
    same = recorded is not None and abs(recorded - reward) < _SAME
    return {"frames": frames, "goal": view.goal, "reward": reward, "same": same}


async def _frames(tab: Tab, view: View, turns: list[str]) -> tuple[list[dict[str, Any]], View]:
    from levelhead.contrib.browser.actions import ActionError, parse_action

    frames: list[dict[str, Any]] = []
    for turn in turns:
        if view.done or view.stray:
            break
        frame = {"image": await _picture(tab), "action": turn, "error": ""}
        frames.append(frame)
        try:
            view = await tab.perform(parse_action(turn))
        except ActionError as error:
            frame["error"] = str(error)
    if not (view.stray or view.done):  # a page that has ended covers itself up
        frames.append({"image": await _picture(tab), "action": None, "error": ""})
    return frames, view


async def _picture(tab: Tab) -> str:
    image = await tab.page.screenshot(
        clip={"x": 0, "y": 0, "width": _WIDTH, "height": _HEIGHT}, animations="allow", timeout=_ACTION_SECONDS * 1000
    )
    return "data:image/png;base64," + base64.b64encode(image).decode()
