"""Each check of draws, shares and redraws goes red when what it guards is broken, in three ways at least."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

import levelhead.rollout.generators.local
import levelhead.rollout.logits
import levelhead.training.group_queue
from levelhead.records import Group
from levelhead.rollout.draws import derive, uniforms
from levelhead.training.collect import Collector
from levelhead.training.collected import Collected
from levelhead.training.curriculum import Evidence, LearnabilityStream
from levelhead.training.group_queue import GroupQueue
from levelhead.training.prepare import Setup
from levelhead.training.stream import PromptStream
from night import cases
from oracle.result import Check
from oracle.run import preflight
from preflight_setup import setup_of

Patch = pytest.MonkeyPatch
CURRICULUM = "grpo.curriculum={kind: learnability, half_life: 5}"


@lru_cache
def setup(*settings: str) -> Setup:
    return setup_of(*settings)


def first_check(name: str, family: str, *settings: str) -> Check:
    report = preflight(setup(*settings), families=[family])
    return next(check for check in report.checks if check.name == name)


def one_generator_a_group(patch: Patch) -> None:
    patch.setattr(
        levelhead.rollout.generators.local, "uniforms", lambda seed, name, index, n: uniforms(seed, name, 0, n)
    )


def a_generator_for_two(patch: Patch) -> None:
    patch.setattr(
        levelhead.rollout.generators.local, "uniforms", lambda seed, name, i, n: uniforms(seed, name, i // 2, n)
    )


def first_rollout_copied(patch: Patch) -> None:
    real = Collector._answers

    async def answers(self: Collector, *args: Any) -> list[Group]:
        groups = await real(self, *args)
        return [Group(g.prompt, (g.rollouts[0], g.rollouts[0], *g.rollouts[2:])) for g in groups]

    patch.setattr(Collector, "_answers", answers)


def drawn_from(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Patch], None]:
    """Draw from other odds than those that are recorded."""

    def mutate(patch: Patch) -> None:
        real = levelhead.rollout.logits.draw
        patch.setattr(levelhead.rollout.logits, "draw", lambda odds, numbers: real(change(odds), numbers))

    return mutate


def best_twenty(odds: torch.Tensor) -> torch.Tensor:
    return odds * (odds >= odds.topk(20, dim=-1).values[:, -1:])


def no_truncation(patch: Patch) -> None:
    patch.setattr(levelhead.rollout.logits, "truncate", lambda logits, **_: logits)


def seed_without_step(patch: Patch) -> None:
    patch.setattr(levelhead.training.group_queue, "rollout_seed", lambda seed, step: seed)


def redraw_with_the_same_seed(patch: Patch) -> None:
    patch.setattr(
        levelhead.training.group_queue, "derive", lambda seed, name, *_: derive(seed, name) if name == "visit" else seed
    )


def visits_of_a_batch_alike(patch: Patch) -> None:
    patch.setattr(
        levelhead.training.group_queue,
        "derive",
        lambda seed, *names: seed if names[0] == "visit" else derive(seed, *names),
    )


def shared(change: Callable[..., Coroutine[Any, Any, Collected]]) -> Callable[[Patch], None]:
    """Change what several processes do of a call; one alone goes on as before."""

    def mutate(patch: Patch) -> None:
        real = Collector.collect

        async def collect(self: Any, *args: Any) -> Collected:
            return await (real if self._ranks.alone else change)(self, *args)

        patch.setattr(Collector, "collect", collect)

    return mutate


async def parts_one_after_the_other(self: Any, prompts: Sequence[Any], k: int, controls: Any, seed: int) -> Collected:
    parts = self._ranks.gathered(await self._collect(prompts[self._ranks.rank :: 2], k, controls, seed))
    return Collected([group for part in parts for group in part.groups])


async def every_process_the_first_half(
    self: Any, prompts: Sequence[Any], k: int, controls: Any, seed: int
) -> Collected:
    parts = self._ranks.gathered(await self._collect(prompts[: len(prompts) // 2], k, controls, seed))
    return Collected([group for part in parts for group in part.groups])


async def a_seed_a_process(self: Any, prompts: Sequence[Any], k: int, controls: Any, seed: int) -> Collected:
    own = derive(seed, "rank", self._ranks.rank)
    parts = self._ranks.gathered(await self._collect(prompts[self._ranks.rank :: 2], k, controls, own))
    return Collected([parts[i % 2].groups[i // 2] for i in range(len(prompts))])


DRAWS = [
    ("sampling/repeats", one_generator_a_group, ()),
    ("sampling/repeats", a_generator_for_two, ()),
    ("sampling/repeats", first_rollout_copied, ()),
    ("sampling/distribution", drawn_from(lambda odds: odds**2), ()),
    ("sampling/distribution", drawn_from(lambda odds: odds**0.5), ()),
    ("sampling/distribution", drawn_from(best_twenty), ()),
    ("sampling/distribution", no_truncation, ("grpo.sampling.top_p=0.8",)),
    ("sampling/returns", seed_without_step, ()),
    ("sampling/returns", redraw_with_the_same_seed, ()),
    ("sampling/returns", visits_of_a_batch_alike, ()),
    ("sampling/processes", shared(parts_one_after_the_other), ()),
    ("sampling/processes", shared(every_process_the_first_half), ()),
    ("sampling/processes", shared(a_seed_a_process), ()),
]


@pytest.mark.parametrize(("name", "mutate", "settings"), DRAWS)
def test_a_broken_sampler_is_seen(
    name: str, mutate: Callable[[Patch], None], settings: tuple[str, ...], monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    assert first_check(name, "draws", *settings).status == "fail"


def the_first_task_alone(patch: Patch) -> None:
    patch.setattr(PromptStream, "_due", lambda _: 0)


def all_tasks_alike(patch: Patch) -> None:
    real = PromptStream.__init__
    patch.setattr(
        PromptStream, "__init__", lambda self, tasks, weights, seed: real(self, tasks, [1.0] * len(weights), seed)
    )


def a_task_by_its_failures(patch: Patch) -> None:
    def learn(self: PromptStream, groups: Sequence[Group], step: int) -> None:
        for group in groups:
            self._taken[0] += group.rewards[0] > 0.5

    patch.setattr(PromptStream, "learn", learn)


def success_is_drawn(patch: Patch) -> None:
    patch.setattr(LearnabilityStream, "_weigh", lambda self, p: np.maximum(p, self._config.floor))


def nothing_fades(patch: Patch) -> None:
    patch.setattr(Evidence, "at", lambda self, step, half_life: (self.wins, self.tries))


def items_all_alike(patch: Patch) -> None:
    def choose(self: LearnabilityStream, arm: int, count: int, rng: np.random.Generator) -> Any:
        items = self._items[self._names[arm]]
        return [items[i] for i in rng.integers(len(items), size=count)]

    patch.setattr(LearnabilityStream, "_choose", choose)


def flat_groups_first(patch: Patch) -> None:
    real = GroupQueue._with_redraws

    def contrasted(self: GroupQueue, step: int, groups: Any, wanted: int, *args: Any) -> Any:
        result, sampled, more = real(self, step, groups, wanted, *args)
        result.groups = sorted(sampled, key=lambda group: len(set(group.rewards)))[:wanted]
        return result, sampled, more

    patch.setattr(GroupQueue, "_with_redraws", contrasted)


def contrast_upside_down(patch: Patch) -> None:
    patch.setattr(levelhead.training.group_queue, "has_contrast", lambda group, _: len(set(group.rewards)) == 1)


def no_redraws(patch: Patch) -> None:
    real = GroupQueue._with_redraws

    def contrasted(self: GroupQueue, step: int, groups: Any, wanted: int, redraws: int, values: Any) -> Any:
        self._config = self._config.model_copy(update={"dynamic_sampling": 0})
        return real(self, step, groups, wanted, 0, values)

    patch.setattr(GroupQueue, "_with_redraws", contrasted)


def redrawn_groups_forgotten(patch: Patch) -> None:
    real = GroupQueue._with_redraws

    def contrasted(self: GroupQueue, step: int, groups: Any, wanted: int, *args: Any) -> Any:
        result, sampled, more = real(self, step, groups, wanted, *args)
        result.groups = sampled[:wanted]
        return result, sampled, more

    patch.setattr(GroupQueue, "_with_redraws", contrasted)


CHOICE = [
    ("sampling/shares", the_first_task_alone, ()),
    ("sampling/shares", all_tasks_alike, ("tasks.0.weight=3",)),
    ("sampling/shares", a_task_by_its_failures, ()),
    ("sampling/shares", success_is_drawn, (CURRICULUM,)),
    ("sampling/shares", nothing_fades, (CURRICULUM,)),
    ("sampling/shares", items_all_alike, (CURRICULUM,)),
    ("sampling/redraws", flat_groups_first, ()),
    ("sampling/redraws", contrast_upside_down, ()),
    ("sampling/redraws", no_redraws, ()),
    ("sampling/redraws", redrawn_groups_forgotten, ("grpo.dynamic_sampling=2",)),
]


@pytest.mark.parametrize(("name", "mutate", "settings"), CHOICE)
def test_a_broken_choice_of_prompts_or_groups_is_seen(
    name: str, mutate: Callable[[Patch], None], settings: tuple[str, ...], monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    assert first_check(name, "choice", *settings).status == "fail"


@pytest.mark.night
@pytest.mark.parametrize("seed", range(cases(2, 5)))
@pytest.mark.parametrize("settings", [(), ("grpo.sampling.top_p=0.8", CURRICULUM, "grpo.dynamic_sampling=2")], ids=str)
def test_sound_draws_raise_no_alarm(seed: int, settings: tuple[str, ...]) -> None:
    report = preflight(setup_of(f"seed={seed}", *settings), families=["draws", "choice"])
    assert {check.name: check.message for check in report.checks if check.status != "pass"} == {}


def test_a_cooler_schedule_and_penalties_are_part_of_what_is_asked() -> None:
    controls = ("grpo.sampling.temperature=0.7", "grpo.sampling.presence_penalty=0.5", "grpo.sampling.min_new_tokens=3")
    assert first_check("sampling/distribution", "draws", *controls, "grpo.sampling.no_repeat_ngram=2").status == "pass"
