"""An episode of the browser task is played again from its rollout, as it was; nothing else is played."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from levelhead.contrib.browser import replay as room
from levelhead.contrib.browser.replay import Episodes, can_replay, replay, turns_of

pytest.importorskip("playwright")
pytest.importorskip("miniwob")


def row(page: str = "click-test", completion: str = "click(1)", **info: Any) -> dict[str, Any]:
    return {"completion": completion, "info": {"page": page, "seed": 3, "raw_reward": 1.0, **info}}


def test_only_an_episode_of_a_page_that_ships_can_be_played_again() -> None:
    assert can_replay(row())
    for other in (
        row(page="../../etc/passwd"),
        row(page="no-such-page"),
        row(seed=-1),
        row(seed="3"),
        row(seed=True),
        row(page=["click-test"]),
        {"completion": "click(1)", "info": "click-test"},
        {"completion": "click(1)", "info": {"page": "click-test", "seed": 3}},
        {"completion": "click(1)"},
    ):
        assert not can_replay(other), other


def test_turns_are_parted_where_they_ended_and_else_at_blank_lines() -> None:
    text = "click(1)\n\ntype(2, 'a\n\nb')\n\n"
    assert turns_of({"completion": text, "turns": [8, 15, 0]}) == ["click(1)", "type(2, 'a\n\nb')", ""]
    assert turns_of({"completion": "click(1)\n\nclick(2)"}) == ["click(1)", "click(2)"]
    assert turns_of({"completion": "click(1)", "turns": ["8"]}) == ["click(1)"]


def test_an_episode_is_played_once_however_often_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[str] = []

    def play(one: dict[str, Any]) -> dict[str, Any]:
        played.append(one["completion"])
        return {"frames": [], "of": one["completion"]}

    monkeypatch.setattr(room, "replay", play)
    episodes = Episodes()
    for text in ("click(1)", "click(2)", "click(1)"):
        assert episodes.play(row(completion=text))["of"] == text
    assert played == ["click(1)", "click(2)"]


@pytest.mark.browser
def test_the_pictures_show_what_the_actions_did_and_the_reward_is_the_runs(browser_row: dict[str, Any]) -> None:
    shown = replay(browser_row)
    assert shown["same"]
    assert shown["reward"] == 1.0
    assert [frame["action"] for frame in shown["frames"]] == turns_of(browser_row)
    images = [base64.b64decode(frame["image"].removeprefix("data:image/png;base64,")) for frame in shown["frames"]]
    assert all(image.startswith(b"\x89PNG") for image in images)
    assert len(set(images)) == len(images)


@pytest.mark.browser
def test_an_answer_that_is_no_action_stands_with_its_error_and_another_outcome_is_said(
    browser_row: dict[str, Any],
) -> None:
    shown = replay({**browser_row, "completion": "please click(99)", "turns": None})
    (first, last) = shown["frames"]
    assert first["error"]
    assert last["action"] is None
    assert not shown["same"]


@pytest.fixture(scope="module")
def browser_row(require_browser: None) -> dict[str, Any]:
    """A rollout as training would write it, of the page's own oracle."""
    from levelhead.contrib.browser.task import BrowserTask
    from levelhead.recipe.environments import Browser

    task = BrowserTask(Browser(kind="browser", tasks=["enter-text"], items=4, pages=1, spare_pages=0))

    async def play() -> dict[str, Any]:
        try:
            turns, score = await task.play_oracle(next(iter(task.prompts("train", 0))))
        finally:
            await task.close()
        assert score is not None
        texts = [text for _, text in turns]
        return {"completion": "\n\n".join(texts), "turns": [*map(len, texts)], "info": dict(score.info)}

    return asyncio.run(play())
