"""TRL's contract, as its trainer uses it; TRL itself is not needed."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from levelhead.errors import InputError
from levelhead.integrations.trl import BrowserEnvironments, BrowserTools, browser_reward, reward_function, rows
from levelhead.recipe.tasks import Math
from levelhead.tasks.base import SingleTurnTask
from levelhead.tasks.registry import make_task


def tools_of(environment: BrowserTools) -> dict[str, Any]:
    """Find the tools as ``GRPOTrainer`` does."""
    members = inspect.getmembers(type(environment), predicate=inspect.isfunction)
    return {name: getattr(environment, name) for name, _ in members if name != "reset" and not name.startswith("_")}


@pytest.fixture
def environments() -> Iterator[BrowserEnvironments]:
    made = BrowserEnvironments(tasks=["enter-text", "click-test"], items=20, pages=2, spare_pages=0, action_timeout=5)
    yield made
    made.close()


def test_every_tool_has_a_schema_that_a_chat_template_can_show(environments: BrowserEnvironments) -> None:
    transformers = pytest.importorskip("transformers.utils")
    tools = tools_of(environments())
    assert set(tools) == {"click", "fill", "type", "press", "select", "focus", "hover", "scroll", "drag"}
    for tool in tools.values():
        schema = transformers.get_json_schema(tool)["function"]
        assert schema["description"]
        assert all(argument["description"] for argument in schema["parameters"]["properties"].values())


def test_rows_carry_what_reset_takes(environments: BrowserEnvironments) -> None:
    made = environments.rows("train", seed=1, count=5)
    assert len(made) == 5
    for row in made:
        assert [message["role"] for message in row["prompt"]] == ["system", "user"]
        assert row["task"] in ("enter-text", "click-test")
        assert isinstance(row["seed"], int)


def test_more_environments_than_pages_are_refused_rather_than_hung(environments: BrowserEnvironments) -> None:
    environments()
    environments()
    with pytest.raises(InputError, match="more pages="):
        environments()


@pytest.mark.browser
def test_rollouts_are_played_and_rewarded(require_browser: None, environments: BrowserEnvironments) -> None:
    won, failed = environments(), environments()
    shown = won.reset(task="enter-text", seed=1, prompt=[], other="column")
    assert shown == (
        'Goal: Enter "Bernardine" into the text field and press Submit.\nPage:\n[1] textbox [2] button "Submit"'
    )
    failed.reset(task="enter-text", seed=1)
    assert 'value="Bernardine"' in tools_of(won)["fill"](element=1, text="Bernardine")
    assert won.click(9).startswith("Error: there is no element 9\nPage:\n")
    assert won.click(element=2) == "The episode is over."
    assert won.click(element=2) == "The episode is over."
    for nonsense in ("2'); noop('", None, 2.5):
        assert failed.click(nonsense).startswith("Error:")  # type: ignore[arg-type]
    failed.click(2)
    assert browser_reward(environments=[won, failed], completions=[], prompts=[]) == [1.0, 0.0]
    won.reset(task="click-test", seed=3)
    assert browser_reward([won]) == [0.0]
    won.reset(task="click-test", seed=4)
    won.click(1)
    assert browser_reward([won]) == [1.0]


@pytest.mark.browser
def test_a_lost_page_has_no_reward_and_the_next_episode_has(
    require_browser: None, environments: BrowserEnvironments
) -> None:
    environment = environments()
    environment.reset(task="click-test", seed=1)
    pool = environments.task._pool
    assert pool is not None
    assert pool.host is not None
    pool.host.record.browser.kill()
    assert environment.click(1) == "The page was lost."
    assert browser_reward([environment]) == [None]
    environment.reset(task="click-test", seed=1)
    environment.click(1)
    assert browser_reward([environment]) == [1.0]


def test_a_single_turn_task_rewards_through_trls_signature() -> None:
    task = make_task(Math(kind="math", items=20))
    assert isinstance(task, SingleTurnTask)
    data = rows(task, "train", seed=0, count=4)
    prompts = {prompt.id: prompt for prompt in task.prompts("train", 0)}
    right = [(task.oracle(prompts[row["levelhead_id"]]) or [""])[0] for row in data]
    reward = reward_function(task)
    keywords = {"prompts": [row["prompt"] for row in data], "levelhead_id": [row["levelhead_id"] for row in data]}
    best = reward(completions=right, completion_ids=[[1]] * 4, **keywords)
    assert best == reward(completions=[[{"role": "assistant", "content": text}] for text in right], **keywords)
    worst = reward(completions=[""] * 4, **keywords)
    assert all(a is not None and b is not None and a > b for a, b in zip(best, worst, strict=True))
