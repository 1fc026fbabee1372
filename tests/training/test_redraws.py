from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from levelhead.recipe.objective import Shaping
from levelhead.recipe.sampling import Sampling
from levelhead.recipe.training import Grpo
from levelhead.records import Group, Prompt, Rollout, Score, Turn
from levelhead.training.advantages import AdvantageEstimator, make_shapers
from levelhead.training.batch import make_batch
from levelhead.training.collect import rollout_seed
from levelhead.training.collected import Collected
from levelhead.training.curriculum import has_contrast
from levelhead.training.group_queue import GroupQueue
from levelhead.training.group_sampler import SamplingSetup
from levelhead.training.loop import EventLoop
from levelhead.training.ranks import Ranks

K = 4


class Numbered:
    """A stream of 0, 1, 2, ... that keeps what it is told."""

    def __init__(self) -> None:
        self.taken = 0
        self.told: list[tuple[int, list[str]]] = []

    def take(self, n: int) -> list[Prompt]:
        self.taken += n
        return [Prompt(str(i), "task", ()) for i in range(self.taken - n, self.taken)]

    def learn(self, groups: Sequence[Group], step: int) -> None:
        self.told.append((step, [group.prompt.id for group in groups]))

    def metrics(self) -> dict[str, float]:
        return {"curriculum/told": float(len(self.told))}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        return None


class Scripted:
    """Collects groups of which those named have contrast."""

    loop: EventLoop

    def __init__(self, *contrast: int) -> None:
        self.contrast = set(map(str, contrast))
        self.seeds: list[int] = []
        self.steps: list[tuple[int, int]] = []

    @property
    def own(self) -> Scripted:
        return self

    @property
    def generator(self) -> None:
        return None

    def drain_use(self) -> dict[str, Any]:
        return {}

    def events(self, step: int) -> list[Any]:
        return []

    def at_step(self, step: int, max_steps: int) -> None:
        self.steps.append((step, max_steps))

    def use(self) -> dict[str, float]:
        return {}

    def answers(self, groups: Sequence[Group]) -> dict[str, float]:
        return {"answers/asked_of": float(len(groups))}

    async def collect(self, prompts: Sequence[Prompt], k: int, controls: Sampling, seed: int) -> Collected:
        self.seeds.append(seed)
        groups = [
            Group(p, tuple(Rollout(p.id, (), Score(float(p.id in self.contrast and i == 0))) for i in range(k)))
            for p in prompts
        ]
        return Collected(groups, sample_s=1.0, score_s=2.0, env_s=3.0, dropped=1, episodes=len(prompts) * k)


def queue(stream: Numbered, collector: Scripted, config: Grpo, seed: int, loop: EventLoop) -> GroupQueue:
    collector.loop = loop
    policy: Any = SimpleNamespace(version=0, samples_from=SimpleNamespace(version=0))
    given: Any = (stream, collector, config, seed, policy, lambda step: config.sampling, Ranks())
    return GroupQueue(SamplingSetup(*given))


def batch_of(stream: Numbered, collector: Scripted, config: Grpo, *, step: int = 1, seed: int = 1) -> Collected:
    loop = EventLoop()
    try:
        return queue(stream, collector, config, seed, loop).next(step, config.sampling)
    finally:
        loop.close()


def drawn(stream: Numbered, collector: Scripted, redraws: int, step: int = 7) -> Collected:
    config = Grpo(batch_size=3 * K, group_size=K, dynamic_sampling=redraws)
    return batch_of(stream, collector, config, step=step)


def ids(collected: Collected) -> list[str]:
    return [group.prompt.id for group in collected.groups]


def test_groups_are_taken_as_they_come_unless_they_are_to_be_redrawn() -> None:
    stream = Numbered()
    collected = drawn(stream, Scripted(), 0)
    assert ids(collected) == ["0", "1", "2"]
    assert stream.told == [(7, ["0", "1", "2"])]
    counts = {"num_rollouts": 12.0, "dropped_rollouts": 1.0, "answers/asked_of": 3.0}
    assert collected.values == {"curriculum/told": 0.0, "sampling/temperature": collected.temperature, **counts}


def test_groups_without_contrast_give_way_to_further_prompts() -> None:
    stream, collector = Numbered(), Scripted(1, 4, 5)
    collected = drawn(stream, collector, 5)
    assert ids(collected) == ["1", "4", "5"]
    assert [told for _, told in stream.told] == [["0", "1", "2"], ["3", "4"], ["5"]]
    assert len(set(collector.seeds)) == 3


def test_the_bound_is_kept_and_the_batch_is_never_short() -> None:
    collected = drawn(Numbered(), Scripted(3), 2)
    assert ids(collected) == ["3", "0", "1"]
    assert collected.values["dynamic_sampling/rounds"] == 2


def test_what_is_redrawn_is_counted_and_paid_for() -> None:
    collected = drawn(Numbered(), Scripted(1, 4, 5), 5)
    assert collected.values["dynamic_sampling/redrawn"] == 3
    assert collected.values["dynamic_sampling/contrast"] == pytest.approx(3 / 6)
    assert collected.values["dynamic_sampling/reward"] == pytest.approx(3 / 24)
    assert collected.values["num_rollouts"] == 24
    assert (collected.sample_s, collected.score_s, collected.env_s, collected.dropped) == (3.0, 6.0, 9.0, 3)


def test_whether_answers_depend_on_prompts_is_asked_of_all_that_was_drawn() -> None:
    assert drawn(Numbered(), Scripted(1, 4, 5), 5).values["answers/asked_of"] == 6


def test_a_batch_with_contrast_is_drawn_once() -> None:
    collector = Scripted(0, 1, 2)
    assert drawn(Numbered(), collector, 3).values["dynamic_sampling/redrawn"] == 0
    assert collector.seeds == [rollout_seed(1, 7)]


class Few(Numbered):
    """Three prompts that return and return."""

    def take(self, n: int) -> list[Prompt]:
        return [Prompt(str(i % 3), "task", ()) for i in range(n)]


def test_a_prompt_that_stands_in_a_batch_twice_is_drawn_by_another_seed_each_time() -> None:
    collector = Scripted()
    recipe = Grpo(batch_size=8 * K, group_size=K, steps=3)
    batch = batch_of(Few(), collector, recipe, seed=5)
    assert [group.prompt.id for group in batch.groups] == ["0", "1", "2", "0", "1", "2", "0", "1"]
    assert collector.seeds[0] == rollout_seed(5, 1)
    assert len(set(collector.seeds)) == 3


def test_rewards_of_turns_are_a_contrast_for_an_estimator_that_credits_turns() -> None:
    turn = Turn((1,), (2,), (0.0,), (0.0,), "stop")
    by_turn = Grpo.model_validate({"advantage": {"kind": "mt_grpo"}})

    def of(*paid: float) -> Group:
        rollouts = [Rollout("0", (turn, turn), Score(1.0), turn_rewards=each) for each in (paid, (0.0, 1.0))]
        return Group(Prompt("0", "task", ()), tuple(rollouts))

    group_advantages, _ = AdvantageEstimator(by_turn, make_shapers({"task": Shaping()}, by_turn)).assign(
        [of(1.0, 0.0), of(0.0, 1.0)], None, {"task": 0.0}
    )
    assert [assigned.has_signal for assigned in group_advantages] == [True, False]
    assert [has_contrast(group, by_turn) for group in (of(1.0, 0.0), of(0.0, 1.0))] == [True, False]
    assert not has_contrast(of(1.0, 0.0), Grpo())
    values = make_batch([of(1.0, 0.0), of(0.0, 1.0)], group_advantages).values
    assert values["frac_reward_zero_std"] == values["dead_groups/all_solved"] == 0.5
