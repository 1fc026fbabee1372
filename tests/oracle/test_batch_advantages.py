"""Advantages are the estimator's formula on the rewards, and samples are the rollouts, each once an epoch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from levelhead.recipe.objective import Shaping
from levelhead.recipe.training import Grpo
from levelhead.records import Group, Prompt, Rollout, Score, Turn
from levelhead.training.advantages import AdvantageEstimator, make_shapers
from levelhead.training.batch import make_batch
from oracle.batch_advantages import BATCH, FORMULAS, BatchAdvantages

EXACT = sorted(FORMULAS)


def group(name: str, rewards: list[float], task: str = "one", turns: int = 1) -> Group:
    rng = random.Random(name)

    def turn() -> Turn:
        n = rng.randint(1, 9)
        ids = tuple(rng.randrange(50) for _ in range(n))
        return Turn((1, 2, rng.randrange(50)), ids, (-1.0,) * n, (-1.0,) * n, "stop")

    rollouts = [Rollout(name, tuple(turn() for _ in range(turns)), Score(r, {"x": r})) for r in rewards]
    return Group(Prompt(name, task, ({"role": "user", "content": name},)), tuple(rollouts))


def batch_of(turns: int = 1) -> list[Group]:
    rng = random.Random(5)
    groups = [group(f"p{i}", [rng.uniform(-3, 2) * (i + 1) for _ in range(4)], turns=turns) for i in range(4)]
    return [*groups, group("flat", [0.7] * 4), group("q", [0.0, 1.0, 1.0, 0.5], "two"), group("short", [1.0])]


def made(
    kind: str = "grpo",
    *,
    turns: int = 1,
    credit: Callable[[Any], Any] | None = None,
    groups: list[Group] | None = None,
    **changes: Any,
) -> BatchAdvantages:
    grpo = Grpo(advantage={"kind": kind, **changes}, batch_size=24, group_size=4, updates_per_batch=2, epochs=2)
    groups = groups or batch_of(turns)
    shaping = {"one": Shaping(), "two": Shaping()}
    group_advantages, _ = AdvantageEstimator(grpo, make_shapers(shaping, grpo)).assign(groups, None, {})
    group_advantages = credit(group_advantages) if credit else group_advantages
    batch = make_batch(groups, group_advantages)
    hands = [[s for g in batch.groups[part::2] for s in g] for _ in range(2) for part in range(2)]
    return BatchAdvantages(grpo, shaping, groups, group_advantages, batch, hands)


def told(batch: BatchAdvantages) -> dict[str, str]:
    return {violation.code: violation.text for identity in BATCH for violation in identity(batch)}


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("changes", [{}, {"clip": 0.3}, {"ddof": 0, "eps": 0.0}])
def test_a_sound_batch_is_left_alone(kind: str, turns: int, changes: dict[str, Any]) -> None:
    assert told(made(kind, turns=turns, **changes)) == {}


@pytest.mark.parametrize("least", [5e-324, 1e-310, 1e-300])
@pytest.mark.parametrize("kind", EXACT)
def test_rewards_that_differ_by_next_to_nothing_raise_no_alarm(kind: str, least: float) -> None:
    groups = [group(f"p{i}", [0.0, least, 0.0, 3 * least]) for i in range(4)]
    assert "advantage" not in told(made(kind, groups=groups))


def test_the_textbook_is_the_estimator_for_every_kind_that_it_has() -> None:
    assert {"grpo", "dr_grpo", "rloo", "opo", "batch"} == set(FORMULAS)


def test_estimators_without_a_formula_are_left_alone() -> None:
    assert told(made("reinforce_pp")) == {}
    assert told(made("gdpo")) == {}


def values(change: Callable[[list[float]], list[float]]) -> Callable[[Any], Any]:
    return lambda group_advantages: [replace(c, values=change(c.values)) for c in group_advantages]


def exchanged(group_advantages: list[Any]) -> list[Any]:
    first, second, *others = group_advantages
    return [replace(first, values=second.values), replace(second, values=first.values), *others]


ADVANTAGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "sign": (values(lambda v: [-x for x in v]), "their sign is lost"),
    "shifted by one rollout": (values(lambda v: v[1:] + v[:1]), "they belong to other rollouts"),
    "too large": (values(lambda v: [1.8 * x for x in v]), "1.8 times as large"),
    "no baseline": (values(lambda v: [x + 0.5 for x in v]), "0.5 too high"),
    "groups exchanged": (exchanged, "in no simple way"),
    "flat groups count": (values(lambda v: [x or 1e-3 for x in v]), ""),
}


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_other_advantages_are_told_of_with_what_is_off(name: str, kind: str) -> None:
    change, cause = ADVANTAGES[name]
    messages = told(made(kind, credit=change))
    assert "advantage" in messages
    assert cause in messages["advantage"]


REWARDS = {
    "clipped": lambda group_advantages: [replace(c, shaped=[min(x, 0.5) for x in c.shaped]) for c in group_advantages],
    "rounded": lambda group_advantages: [replace(c, shaped=[round(x) for x in c.shaped]) for c in group_advantages],
    "reversed": lambda group_advantages: [replace(c, shaped=c.shaped[::-1]) for c in group_advantages],
}


@pytest.mark.parametrize("name", sorted(REWARDS))
def test_rewards_that_change_on_the_way_are_told_of(name: str) -> None:
    assert "rewards-changed" in told(made(credit=REWARDS[name]))


def test_rewards_that_are_to_be_shaped_may_change() -> None:
    batch = made(credit=REWARDS["rounded"])
    shaped = replace(batch, shaping={"one": Shaping(clip=(-1.0, 1.0)), "two": Shaping(clip=(-1.0, 1.0))})
    assert "rewards-changed" not in told(shaped)


def agreement(change: Callable[[float], float]) -> BatchAdvantages:
    batch = made()
    logged = batch.batch.values["advantages/agreement"]
    values = {**batch.batch.values, "advantages/agreement": change(logged)}
    return replace(batch, batch=replace(batch.batch, values=values))


@pytest.mark.parametrize("change", [lambda v: v - 0.01, lambda v: -v, lambda _: 1.5])
def test_an_agreement_other_than_expected_is_told_of(change: Callable[[float], float]) -> None:
    assert set(told(agreement(change))) == {"advantage-agreement"}


def dropped(batch: BatchAdvantages) -> BatchAdvantages:
    return replace(batch, minibatches=[hand[:-1] for hand in batch.minibatches])


def doubled(batch: BatchAdvantages) -> BatchAdvantages:
    return replace(batch, minibatches=[[*hand, hand[0]] for hand in batch.minibatches])


def one_epoch(batch: BatchAdvantages) -> BatchAdvantages:
    return replace(batch, minibatches=batch.minibatches[:2])


def other_tokens(batch: BatchAdvantages) -> BatchAdvantages:
    groups = [list(samples) for samples in batch.batch.groups]
    groups[0][0], groups[0][1] = groups[0][1], groups[0][0]
    return replace(batch, batch=replace(batch.batch, groups=groups))


def other_advantage(batch: BatchAdvantages) -> BatchAdvantages:
    groups = [[replace(s, advantage=s.advantage * 1.01) for s in samples] for samples in batch.batch.groups]
    return replace(batch, batch=replace(batch.batch, groups=groups))


@pytest.mark.parametrize("break_it", [dropped, doubled, one_epoch, other_tokens, other_advantage])
def test_samples_that_are_not_the_rollouts_once_an_epoch_are_told_of(
    break_it: Callable[[BatchAdvantages], BatchAdvantages],
) -> None:
    assert "samples" in told(break_it(made()))


@pytest.mark.parametrize("name", ["reward", "reward/one"])
def test_a_logged_reward_that_is_not_the_mean_of_the_step_is_told_of(name: str) -> None:
    sound = made()
    assert name in sound.batch.values
    other = replace(sound.batch, values={**sound.batch.values, name: sound.batch.values[name] + 0.01})
    text = told(replace(sound, batch=other))["reward-metric"]
    assert f"the logged metric {name} is" in text
