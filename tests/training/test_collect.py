"""Episodes of several turns are played side by side, and drawn again where their environment breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from counting_episodes import PROMPTS, Counting, Episode, Plain, Recorder
from levelhead.recipe.sampling import TrainSampling
from levelhead.records import Prompt
from levelhead.tasks.base import Step
from levelhead.training.collect import RESTARTS, Collected, Collector
from levelhead.training.loop import EventLoop


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
    task = Counting(breaks={"b": 2 * (RESTARTS + 1)})
    result = collect(task, loop, Recorder())
    assert [len(group.rollouts) for group in result.groups] == [2, 0, 2]
    assert (result.episodes, result.dropped, task.open.total()) == (4, 2, 0)


class Uneven(Counting):
    """Two episodes at once, of which that of prompt a acts much longer than the others."""

    def __init__(self) -> None:
        super().__init__(concurrency=2)
        self.log: list[str] = []

    def episode(self, prompt: Prompt) -> Episode:
        super().episode(prompt)
        self.log.append(f"begin {prompt.id}")
        return Slow(self, prompt.id)


class Slow(Episode):
    async def act(self, text: str) -> Step:
        step = await super().act(text)
        if self.name == "a" and step.done:
            for _ in range(50):
                await asyncio.sleep(0)
        self.task.log.append(f"end {self.name}" if step.done else f"turn {self.name}")
        return step


def test_episodes_begin_together_where_the_policy_draws(loop: EventLoop) -> None:
    task = Uneven()
    collect(task, loop, Recorder(), k=1)
    assert task.log.index("end b") < task.log.index("end a") < task.log.index("begin c")


class Paying(Counting):
    """Each turn earns as many tenths as turns came before it, and the second is lost at times."""

    def episode(self, prompt: Prompt) -> Episode:
        return PayingEpisode(self, prompt.id)


class PayingEpisode(Episode):
    async def act(self, text: str) -> Step:
        step = await super().act(text)
        return Step(step.done, step.score, reward=0.1 * len(self.said))


def test_what_each_turn_earned_stays_with_it_and_that_of_a_lost_episode_is_forgotten(loop: EventLoop) -> None:
    result = collect(Paying(breaks={"b": 2}), loop, Recorder())
    paid = {rollout.turn_rewards for group in result.groups for rollout in group.rollouts}
    assert paid == {(0.1, 0.2)}
    assert {r.turn_rewards for g in collect(Counting(), loop, Recorder()).groups for r in g.rollouts} == {()}


def test_a_turn_earns_a_finite_number() -> None:
    for reward in (float("nan"), float("inf"), 1e13):
        with pytest.raises(ValueError, match="the reward of a turn"):
            Step(False, reward=reward)
