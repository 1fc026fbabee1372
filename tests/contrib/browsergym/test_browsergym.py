"""The adapter against an environment that speaks as BrowserGym's do, and against BrowserGym where it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from levelhead.contrib import browsergym
from levelhead.contrib.browser.actions import Action, ActionError
from levelhead.contrib.browsergym import BrowserGymTask, call_of, view_of
from levelhead.errors import InputError
from levelhead.recipe.environments import BrowserGym
from levelhead.tasks.base import EpisodeLostError, Task


def node(number: int, role: str, name: str = "", *children: int, bid: str | None = None, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "nodeId": str(number),
        "role": {"value": role},
        "name": {"value": name},
        "childIds": [str(child) for child in children],
        "properties": [{"name": key, "value": {"value": value}} for key, value in more.pop("has", {}).items()],
        **more,
    }
    return made if bid is None else {**made, "browsergym_id": bid}


PAGE = [
    node(1, "RootWebArea", "A page", 2),
    node(2, "none", "", 3, ignored=True),
    node(3, "generic", "", 4, 7, 9, 10, 12, 13, bid="8"),
    node(4, "button", "Go", 5, bid="12"),
    node(5, "StaticText", "Go", 6),
    node(6, "InlineTextBox", "Go"),
    node(7, "StaticText", "some words", 8),
    node(8, "InlineTextBox", "some words"),
    node(9, "textbox", "Name", 14, bid="a14", value={"value": "Ada"}, has={"focused": True}),
    node(14, "StaticText", "Ada"),
    node(10, "generic", "", 11, bid="15"),
    node(11, "StaticText", "a span that takes clicks"),
    node(12, "combobox", "", bid="16", has={"expanded": False}),
    node(13, "button", "hidden", bid="17"),
]
ABOUT = {"8": {"clickable": True}, "15": {"clickable": True}, "17": {"visibility": 0}}


def observation(**more: Any) -> dict[str, Any]:
    return {"goal": "Press Go.", "axtree_object": {"nodes": PAGE}, "extra_element_properties": ABOUT, **more}


def test_the_tree_reads_as_numbered_elements_and_text() -> None:
    view, ids = view_of(observation())
    assert view.goal == "Press Go."
    assert view.text.splitlines() == [
        '[1] button "Go"',
        "some words",
        '[2] textbox "Name" value="Ada" focused',
        '[3] item "a span that takes clicks"',
        "[4] combobox collapsed",
    ]
    assert ids == ["12", "a14", "15", "16"]


@pytest.mark.parametrize(
    ("action", "call"),
    [
        (Action("click", 2), "click('a14')"),
        (Action("fill", 2, "it's \"me\"\nexec('1')"), "fill('a14', 'it\\'s \"me\"\\nexec(\\'1\\')')"),
        (Action("type", 2, "x"), "focus('a14')\nkeyboard_type('x')"),
        (Action("press", None, "Enter"), "keyboard_press('Enter')"),
        (Action("press", 1, "Enter"), "press('12', 'Enter')"),
        (Action("select", 4, "b"), "select_option('16', 'b')"),
        (Action("scroll", None, "up"), "scroll(0, -300)"),
        (Action("drag", 1, to=2), "drag_and_drop('12', 'a14')"),
        (Action("noop"), "noop()"),
    ],
)
def test_actions_become_calls_with_what_the_policy_wrote_as_quoted_text(action: Action, call: str) -> None:
    assert call_of(action, ["12", "a14", "15", "16"]) == call


@pytest.mark.parametrize("action", [Action("click", 5), Action("click", 0), Action("drag", 1, offset=(3, 4))])
def test_actions_without_counterpart_are_refused(action: Action) -> None:
    with pytest.raises(ActionError):
        call_of(action, ["12"])


class Fake:
    """An environment whose episode is won by ``click('12')``; ``noop()`` breaks it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.threads: set[str] = set()
        self.closed = False

    def reset(self, *, seed: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        self.threads.add(threading.current_thread().name)
        return observation(goal=f"seed {seed}"), {}

    def step(self, action: str, /) -> tuple[Mapping[str, Any], float, bool, bool, Mapping[str, Any]]:
        self.threads.add(threading.current_thread().name)
        self.calls.append(action)
        if action == "noop()":
            raise RuntimeError("the browser is gone\nand more")
        won = action == "click('12')"
        return observation(last_action_error="" if won else "TimeoutError: no\nlog"), float(won), won, False, {}

    def close(self) -> None:
        self.closed = True


def make(**keys: Any) -> tuple[BrowserGymTask, list[Fake]]:
    made: list[Fake] = []

    def environment(_: str) -> Fake:
        made.append(Fake())
        return made[-1]

    section = BrowserGym.model_validate({"kind": "browsergym", "tasks": ["browsergym/miniwob.x"], **keys})
    return BrowserGymTask(section, environment), made


async def test_an_episode_is_played_on_one_thread_and_the_environment_used_again() -> None:
    task, made = make()
    assert isinstance(task, Task)
    assert task.concurrency
    for seed in (3, 4):
        episode = task.episode(task.prompt("browsergym/miniwob.x", seed))
        assert "Goal: seed" in (await episode.observe())[-1]["content"]
        assert not (await episode.act("fill(2, 'Ada')")).done
        assert "Error: TimeoutError: no\nPage:" in (await episode.observe())[-1]["content"]
        assert not (await episode.act("click(77)")).done
        assert "Error: there is no element 77" in (await episode.observe())[-1]["content"]
        step = await episode.act("click(1)")
        assert step.score is not None
        assert step.score.parts == {"success": 1.0, "return": 1.0}
        assert not step.score.valid
    assert len(made) == 1
    assert made[0].calls == ["fill('a14', 'Ada')", "click('12')"] * 2
    (thread,) = made[0].threads
    assert thread.startswith("levelhead-browsergym")
    await task.close()
    assert made[0].closed


async def test_an_environment_that_breaks_costs_its_episode_and_is_replaced() -> None:
    task, made = make(step_limit=2)
    episode = task.episode(task.prompt("browsergym/miniwob.x", 0))
    await episode.observe()
    with pytest.raises(EpisodeLostError, match=r"the browser is gone$"):
        await episode.act("noop()")
    assert made[0].closed
    assert [event.code for event in task.drain_events(1)] == ["environment-lost"]
    again = task.episode(task.prompt("browsergym/miniwob.x", 0))
    await again.observe()
    assert not (await again.act("nonsense")).done
    step = await again.act("nonsense")
    assert step.score is not None
    assert (step.score.total, step.score.info["ended"]) == (0.0, "step_limit")
    assert len(made) == 2
    await task.close()


def test_without_browsergym_the_way_to_get_it_is_told() -> None:
    section = BrowserGym(kind="browsergym", tasks=["browsergym/no_such_benchmark.x"])
    with pytest.raises(InputError, match="pip install browsergym"):
        BrowserGymTask(section)


def test_without_the_address_of_its_pages_miniwob_is_refused_before_anything_is_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(browsergym, "import_module", lambda name: MagicMock())
    section = BrowserGym(kind="browsergym", tasks=["browsergym/miniwob.click-test"])
    monkeypatch.delenv("MINIWOB_URL", raising=False)
    with pytest.raises(InputError, match="MINIWOB_URL"):
        BrowserGymTask(section)
    monkeypatch.setenv("MINIWOB_URL", "file:///pages/")
    BrowserGymTask(section)


PYTHON = os.environ.get("LEVELHEAD_BROWSERGYM") or (sys.executable if find_spec("browsergym") else "")


@pytest.mark.timeout(300)
@pytest.mark.skipif(not PYTHON, reason="needs browsergym-miniwob: LEVELHEAD_BROWSERGYM names a Python that has it")
@pytest.mark.skipif("MINIWOB_URL" not in os.environ, reason="needs MINIWOB_URL, where BrowserGym finds its pages")
def test_browsergyms_own_pages_are_played_by_what_is_shown() -> None:
    program = Path(__file__).resolve().parents[2] / "browsergym_program.py"
    environment = {**os.environ, "PYTHONPATH": str(program.parents[1] / "src")}
    pages = ["click-test", "enter-text", "choose-list"]
    ended = subprocess.run(
        [PYTHON, str(program), *pages], capture_output=True, text=True, env=environment, timeout=280, check=True
    )
    played = json.loads(ended.stdout.splitlines()[-1])
    assert [(one["page"], one["total"], one["events"]) for one in played] == [(page, 1.0, 0) for page in pages]
    assert played[0]["seen"][0].endswith('Page:\n[1] button "Click Me!"')
    filled = played[1]["seen"][1].splitlines()
    assert filled[-2].startswith("[1] textbox value=")
    assert len(filled) == 5, "what stands in a field is shown once"
