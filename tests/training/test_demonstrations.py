from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from levelhead.errors import InputError
from levelhead.records import ChatMessage, Prompt, Score
from levelhead.tasks.base import EpisodeLostError, SingleTurnTask, Split
from levelhead.training.demonstrations import Demonstrations
from levelhead.training.loop import EventLoop


class Told(SingleTurnTask):
    """Knows its answers beforehand, but for the prompt called mute."""

    name = "told"

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        yield from ()

    def score(self, prompt: Prompt, text: str) -> Score:
        return Score(0.0)

    def oracle(self, prompt: Prompt) -> list[str] | None:
        return None if prompt.id == "mute" else [f"answer {prompt.id}"]


class Played(Told):
    """Plays two turns an episode; counts how many it plays, and how many at once."""

    name = "played"

    def __init__(self) -> None:
        self.count = self.live = self.most = 0

    async def demonstrate(self, prompt: Prompt) -> list[tuple[list[ChatMessage], str]]:
        if prompt.id == "lost":
            raise EpisodeLostError("gone")
        self.count += 1
        self.live += 1
        self.most = max(self.most, self.live)
        await asyncio.sleep(0.01)
        self.live -= 1
        return [([{"role": "user", "content": f"{prompt.id}.{turn}"}], f"act {turn}") for turn in range(2)]


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    made = EventLoop()
    yield made
    made.close()


def shown(demonstrations: Sequence[Any]) -> list[list[str]]:
    return [[answer for _, answer in turns] for turns in demonstrations]


def prompt(name: str, task: str = "played") -> Prompt:
    return Prompt(name, task, ({"role": "user", "content": name},))


def test_answers_and_episodes_come_in_the_order_of_the_prompts(loop: EventLoop) -> None:
    tasks = {"told": Told(), "played": Played()}
    demonstrations = Demonstrations(tasks, loop).show([prompt("a"), prompt("b", "told"), prompt("c")])
    assert shown(demonstrations) == [["act 0", "act 1"], ["answer b"], ["act 0", "act 1"]]
    assert demonstrations[2][1][0][0]["content"] == "c.1"


def test_episodes_are_played_side_by_side_and_once(loop: EventLoop) -> None:
    task = Played()
    assert task.demonstrates
    one = Demonstrations({"played": task}, loop)
    prompts = [prompt(name) for name in "abab"]
    assert one.show(prompts) == one.show(prompts)
    assert (task.count, task.most) == (2, 2)


def test_an_episode_that_is_lost_shows_nothing_and_is_not_the_end(loop: EventLoop) -> None:
    demonstrations = Demonstrations({"played": Played()}, loop).show([prompt("lost"), prompt("a")])
    assert shown(demonstrations) == [[], ["act 0", "act 1"]]


def test_a_task_without_a_perfect_answer_is_an_input_error(loop: EventLoop) -> None:
    with pytest.raises(InputError, match="no perfect answer for prompt 'mute'"):
        Demonstrations({"told": Told()}, loop).show([prompt("mute", "told")])
