"""Groups of episodes are played side by side: one that is held up leaves room for the next, and changes no draw."""

from __future__ import annotations

import asyncio
from typing import Any

from counting_episodes import PROMPTS, Counting, Plain, Recorder
from levelhead.recipe.sampling import TrainSampling
from levelhead.training.collect import Collector
from levelhead.training.collected import Collected
from levelhead.training.episodes import Room, SharedPlaces
from levelhead.training.loop import EventLoop

K = 4


class Held(Counting):
    """Holds up the episodes of one prompt until it is told to go on."""

    def __init__(self, concurrency: int, prompt: str) -> None:
        super().__init__(concurrency)
        self.prompt, self.go = prompt, asyncio.Event()

    def episode(self, prompt: Any) -> Any:
        episode = super().episode(prompt)
        observe = episode.observe

        async def waits() -> Any:
            if prompt.id == self.prompt:
                await self.go.wait()
            return await observe()

        episode.observe = waits
        return episode


def collect(task: Held) -> tuple[list[str], dict[str, Recorder]]:
    """Draw the groups of all prompts at once; returns in which order they were there, and who drew each."""
    order: list[str] = []
    lanes = {prompt.id: Recorder() for prompt in PROMPTS}
    loop = EventLoop()
    try:
        inner = Collector({"count": task}, Plain(), Recorder(), loop)  # type: ignore[arg-type, dict-item]
        rooms: dict[str, Room] = {}

        async def draw(prompt: Any) -> Collected:
            collector = inner.of_group(lanes[prompt.id], SharedPlaces(rooms, 0, 1))  # type: ignore[arg-type]
            result = await collector.collect([prompt], K, TrainSampling(), 0)
            order.append(prompt.id)
            if len(order) == len(PROMPTS) - 1:
                task.go.set()
            return result

        async def all_groups() -> list[Collected]:
            return await asyncio.gather(*(draw(prompt) for prompt in PROMPTS))

        results = loop.run(all_groups())
        assert [[group.prompt for group in result.groups] for result in results] == [[prompt] for prompt in PROMPTS]
        assert [result.episodes for result in results] == [K] * len(PROMPTS)
    finally:
        loop.close()
    return order, lanes


def test_a_group_that_is_held_up_leaves_room_for_the_others() -> None:
    task = Held(4, PROMPTS[0].id)
    order, _ = collect(task)
    assert order == [PROMPTS[1].id, PROMPTS[2].id, PROMPTS[0].id]
    assert task.most <= 4


def test_what_is_drawn_together_does_not_depend_on_who_is_held_up() -> None:
    _, first = collect(Held(8, PROMPTS[0].id))
    _, other = collect(Held(8, PROMPTS[2].id))
    assert {name: lane.together for name, lane in first.items()} == {n: lane.together for n, lane in other.items()}
    assert {len(names) for lane in first.values() for names in lane.together} == {2}  # a quarter of the places
