"""Episodes of several turns are played side by side, and drawn again where their environment breaks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from levelhead.recipe.sampling import TrainSampling
from levelhead.records import Message, Prompt, Score, Turn
from levelhead.rollout.generators.base import Completion, Request
from levelhead.tasks.base import EpisodeLostError, Step, Task
from levelhead.training.collect import REDRAWS, Collected, Collector
from levelhead.training.loop import EventLoop

PROMPTS = [Prompt(name, "count", ({"role": "user", "content": name},)) for name in ("a", "b", "c")]


class Plain:
    """Text is its own characters."""

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(map(ord, messages[-1]["content"]))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


class Recorder:
    """Answers with the name under which a turn is drawn, and keeps who was drawn together."""

    version = 7

    def __init__(self) -> None:
        self.together: list[list[str]] = []
        self.asking = 0
        self.waiting: list[tuple[Request, asyncio.Future[None]]] = []

    async def generate(self, request: Request) -> Completion:
        assert request.index == 0
        self.waiting.append((request, asyncio.get_running_loop().create_future()))
        turn = self.waiting[-1][1]
        self.answer()
        await turn
        prompt = request.prompt
        zeros = (0.0,) * len(prompt.id)
        return Completion(Turn(prompt.token_ids, tuple(map(ord, prompt.id)), zeros, zeros, "stop"), (7, 7))

    def answer(self) -> None:
        if self.waiting and len(self.waiting) == self.asking:
            batch, self.waiting = self.waiting, []
            self.together.append([request.prompt.id for request, _ in sorted(batch, key=lambda pair: pair[0].place)])
            for _, turn in batch:
                turn.set_result(None)

    def expect(self, count: int) -> None:
        self.asking = count

    def leave(self) -> None:
        self.asking -= 1
        self.answer()

    async def sync_weights(self) -> None:
        self.synced = True

    async def close(self) -> None:
        return None


class Counting(Task):
    """Two turns an episode; breaks as often as it is told to."""

    name = "count"

    def __init__(self, concurrency: int = 4, breaks: dict[str, int] | None = None) -> None:
        self.rooms, self.breaks = concurrency, breaks or {}
        self.open: Counter[str] = Counter()
        self.most = 0

    @property
    def concurrency(self) -> int:
        return self.rooms

    def prompts(self, split: str, seed: int) -> Iterator[Prompt]:
        return iter(PROMPTS)

    def oracle(self, prompt: Prompt) -> None:
        return None

    def summarize(self, results: object) -> dict[str, float]:
        return {}

    def episode(self, prompt: Prompt) -> Episode:
        self.open[prompt.id] += 1
        self.most = max(self.most, self.open.total())
        return Episode(self, prompt.id)


class Episode:
    def __init__(self, task: Counting, name: str) -> None:
        self.task, self.name, self.said, self.closed = task, name, [], False

    async def observe(self) -> list[Message]:
        return [{"role": "user", "content": f"{self.name}{len(self.said)}"}]

    async def act(self, text: str) -> Step:
        self.said.append(text)
        if len(self.said) == 2 and self.task.breaks.get(self.name, 0) > 0:
            self.task.breaks[self.name] -= 1
            raise EpisodeLostError("broken")
        return Step(len(self.said) == 2, Score(1.0) if len(self.said) == 2 else None)

    async def close(self) -> None:
        self.task.open[self.name] -= not self.closed
        self.closed = True


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    made = EventLoop()
    yield made
    made.close()


def collect(task: Counting, loop: EventLoop, sampler: Recorder, k: int = 2) -> Collected:
    collector = Collector({"count": task}, Plain(), sampler, loop)  # type: ignore[arg-type, dict-item]
    return collector.run(PROMPTS, k, TrainSampling(), seed=0)


def test_every_turn_is_what_its_own_episode_showed_and_was_told(loop: EventLoop) -> None:
    task, sampler = Counting(), Recorder()
    result = collect(task, loop, sampler)
    assert [group.prompt.id for group in result.groups] == ["a", "b", "c"]
    for group in result.groups:
        for index, rollout in enumerate(group.rollouts):
            shown = [Plain().decode(turn.context_ids) for turn in rollout.turns]
            assert shown == [f"{group.prompt.id}0", f"{group.prompt.id}1"]
            assert rollout.text == tuple(f"{group.prompt.id}#{index}.0@{turn}" for turn in (0, 1))
            assert (rollout.reward, rollout.policy_version) == (1.0, 7)
    assert (result.episodes, result.dropped, task.open.total()) == (6, 0, 0)


def test_no_more_episodes_are_live_than_the_environment_allows_and_prompts_take_turns(loop: EventLoop) -> None:
    task, sampler = Counting(concurrency=3), Recorder()
    collect(task, loop, sampler, k=4)
    assert task.most == 3
    assert all(sorted(name[0] for name in together) == ["a", "b", "c"] for together in sampler.together)


def test_a_broken_episode_is_drawn_again_under_another_name(loop: EventLoop) -> None:
    result = collect(Counting(breaks={"b": 1}), loop, Recorder())
    assert (result.episodes, result.dropped) == (6, 0)
    names = {text for rollout in result.groups[1].rollouts for text in rollout.text}
    assert names == {"b#0.1@0", "b#0.1@1", "b#1.0@0", "b#1.0@1"}


def test_an_episode_that_always_breaks_is_dropped_and_counted(loop: EventLoop) -> None:
    task = Counting(breaks={"b": 2 * (REDRAWS + 1)})
    result = collect(task, loop, Recorder())
    assert [len(group.rollouts) for group in result.groups] == [2, 0, 2]
    assert (result.episodes, result.dropped, task.open.total()) == (4, 2, 0)
