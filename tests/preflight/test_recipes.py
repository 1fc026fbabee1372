"""Recipes that ship pass the preflight as they are: a check that cries wolf is switched off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.known import FAULTS, inject
from faults.unlisted import UNLISTED
from levelhead.preflight import Report, preflight
from levelhead.preflight.context import Context
from levelhead.recipe import load
from levelhead.records import ChatMessage, Prompt, Score
from levelhead.tasks.base import Split, Step, Task
from levelhead.training.prepare import Setup, prepare
from night import by_night
from preflight_setup import recipe_of

RECIPES = Path(__file__).parents[2] / "recipes"


def failures(report: Report) -> list[tuple[str, str]]:
    return [(check.name, check.message) for check in report.failures]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dual-tiny", "workflow-tiny", pytest.param("workflow-collapse", marks=by_night)])
def test_recipe_that_ships_passes_every_check(name: str) -> None:
    assert not failures(preflight(prepare(load(RECIPES / f"{name}.yaml"))))


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.timeout(600)
def test_recipe_on_web_pages_passes_every_check() -> None:
    fewer = [
        "tasks.0.tasks=[click-test,focus-text]",
        "tasks.0.items=40",
        "tasks.0.pages=4",
        "tasks.0.step_limit=2",
        "grpo.group_size=3",
        "grpo.batch_size=12",
    ]
    short = [*fewer, "tasks.0.spare_pages=4", "grpo.sampling.max_new_tokens=16"]
    assert not failures(preflight(prepare(load(RECIPES / "browser-tiny.yaml", short))))


class Rooms(Task):
    """Two turns an episode, the first of them remembered; pages repeat, as on the web."""

    name = "rooms"
    PAGES = ("left", "right", "left", "left")

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        for i, way in enumerate(self.PAGES * 6):
            yield Prompt(f"{split}-{i}", self.name, (self._first(way),), facts={"way": way})

    def oracle(self, prompt: Prompt) -> list[str]:
        return [f"go({prompt.facts['way']})", "leave()"]

    async def demonstrate(self, prompt: Prompt) -> list[tuple[list[ChatMessage], str]]:
        first, second = self.oracle(prompt)
        shown = [self._first(prompt.facts["way"])]
        return [(shown, first), ([*shown, {"role": "assistant", "content": first}, self._second()], second)]

    def episode(self, prompt: Prompt) -> _Walk:
        return _Walk(self, prompt)

    def summarize(self, results: object) -> dict[str, float]:
        return {}

    @staticmethod
    def _first(way: str) -> ChatMessage:
        return {"role": "user", "content": f"The door is on the {way}."}

    @staticmethod
    def _second() -> ChatMessage:
        return {"role": "user", "content": "You are outside."}


class _Walk:
    def __init__(self, task: Rooms, prompt: Prompt) -> None:
        self.shown: list[ChatMessage] = list(prompt.messages)
        self.wanted, self.right, self.worth = task.oracle(prompt), 0.0, 1.0
        self.task, self.strict = task, False

    async def observe(self) -> list[ChatMessage]:
        return self.shown

    async def act(self, text: str) -> Step:
        self.right += 1.0 if text == self.wanted[len(self.shown) // 2] else 0.1 * bool(text)
        done = len(self.shown) > 1 or (self.strict and self.right < 1)
        self.shown = [*self.shown, {"role": "assistant", "content": text}, self.task._second()]
        return Step(done, Score(self.right * self.worth) if done else None)

    async def close(self) -> None:
        return None


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("grpo.dynamic_sampling=2", "grpo.curriculum={kind: learnability}"),
        ("sft.batch_size=24", "sft.tokens_per_microbatch=64", "grpo.tokens_per_microbatch=64"),
        ("grpo.kl.coef=0.05", "model.lora.r=4"),
        ("grpo.advantage={kind: loo_gae, discount: 0.9}", "grpo.loss.turns=sum"),
    ],
    ids=str,
)
def test_episodes_of_several_turns_on_pages_that_repeat_pass(settings: tuple[str, ...]) -> None:
    assert not failures(preflight(several_turns(*settings)))


@pytest.mark.parametrize("fault", ["mask-for-right-padding", "pad-is-end-of-turn"])
def test_wrong_mask_is_caught_over_several_turns_too(fault: str) -> None:
    with inject(fault):
        report = preflight(several_turns(*FAULTS[fault].settings), families=["loss"])
    assert failures(report)


def several_turns(*settings: str, rooms: Rooms | None = None) -> Setup:
    """The probe's recipe on rooms."""
    rooms = rooms or Rooms()
    recipe = recipe_of("tasks=[{kind: function, name: rooms}]", *settings)
    return prepare(recipe, tasks={rooms.name: rooms})


class Strict(Rooms):
    """An episode ends with the first answer unless it is right, which an untrained policy's never is."""

    def episode(self, prompt: Prompt) -> _Walk:
        walk = super().episode(prompt)
        walk.strict = True
        return walk


@pytest.mark.parametrize("fault", ["last-turn-alone-learns", "history-is-trained-on"])
def test_second_turns_come_from_demonstrations_where_the_policy_would_write_none(fault: str) -> None:
    sound = several_turns("sft=null", rooms=Strict())
    assert {len(r.turns) for r in Context(sound).rollouts} == {1}
    assert not failures(preflight(sound, families=["agreement", "loss"]))
    with UNLISTED[fault].change():
        report = preflight(sound, families=["loss"])
    assert "loss/completion-only" in [name for name, _ in failures(report)]


def test_perfect_episode_is_played_and_must_score_most() -> None:
    right = preflight(several_turns(), families=["rewards"])
    assert {c.name: c.evidence["mean_reward"] for c in right.checks if c.name == "rewards/order/rooms"} == {
        "rewards/order/rooms": {"oracle": 2.0, "empty": 0.0, "gibberish": 0.2}
    }
    upside_down = preflight(several_turns(rooms=Trap()), families=["rewards"])
    assert [name for name, _ in failures(upside_down)] == ["rewards/order/rooms"]


class Trap(Rooms):
    """Rewards whoever says nothing."""

    def episode(self, prompt: Prompt) -> _Walk:
        walk = super().episode(prompt)
        walk.worth = -1.0
        return walk
