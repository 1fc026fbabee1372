"""What a run evaluates, saves, goes on with and divides by is the policy that it trains; observers see it broken."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import levelhead.training.fidelity
import levelhead.training.grpo
from levelhead.api import train
from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import Sampling
from levelhead.records import Group, Prompt, Rollout, Score, Turn
from levelhead.training.collect import Collector
from levelhead.training.collected import Collected
from levelhead.training.fidelity import DeclaredRewards, HeldWeights, sampled_otherwise, saved_otherwise
from levelhead.training.step_result import Update
from small_run import events, recipe, tiny_policy

CONTEXT = tuple(range(5, 17))
GREEDY, WARM = Sampling(temperature=0.0), Sampling(temperature=1.0)


@torch.no_grad()
def answer(policy: Policy, temperature: float, length: int = 24, seed: int = 0) -> tuple[int, ...]:
    """Tokens that a policy samples, one by one, the slow way; the likeliest at 0."""
    generator, ids = torch.Generator().manual_seed(seed), list(CONTEXT)
    for _ in range(length):
        logits = policy.model(input_ids=torch.tensor([ids])).logits[0, -1].float()
        p = (logits / (temperature or 1.0)).softmax(-1)
        ids.append(int(p.argmax()) if temperature == 0 else int(torch.multinomial(p, 1, generator=generator)))
    return tuple(ids[len(CONTEXT) :])


def group(*completions: tuple[int, ...]) -> Group:
    turns = [Turn(CONTEXT, ids, (0.0,) * len(ids), (0.0,) * len(ids), "length") for ids in completions]
    return Group(Prompt("1", "echo", ()), tuple(Rollout("1", (turn,), Score(0.0)) for turn in turns))


@pytest.fixture
def sharp() -> Policy:
    """A policy that is far from indifferent: what it samples differs from what is likeliest."""
    policy = tiny_policy()
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.mul_(3.0)
    return policy


def test_answers_that_were_sampled_as_asked_are_not_reported(sharp: Policy) -> None:
    assert sampled_otherwise(sharp, [group(answer(sharp, 0.0))], GREEDY) is None
    warm = [group(*(answer(sharp, 1.0, seed=seed) for seed in range(6)))]
    assert sampled_otherwise(sharp, warm, WARM) is None
    cool = [group(*(answer(sharp, 0.5, seed=seed) for seed in range(6)))]
    assert sampled_otherwise(sharp, cool, Sampling(temperature=0.5)) is None


def test_a_token_that_is_not_the_likeliest_is_named_by_its_place(sharp: Policy) -> None:
    ids = answer(sharp, 0.0)
    with torch.no_grad():
        logits = sharp.model(input_ids=torch.tensor([[*CONTEXT, *ids]])).logits[0]
    worst = int(logits[len(CONTEXT) + 8].argmin())
    (said,) = [sampled_otherwise(sharp, [group((*ids[:9], worst))], GREEDY)]
    assert said is not None
    assert "token 10 " in said


@pytest.mark.parametrize(("asked", "done", "word"), [(1.0, 3.0, "more"), (1.0, 0.0, "less"), (0.5, 1.0, "more")])
def test_another_temperature_shows_in_how_surprising_answers_are(
    asked: float, done: float, word: str, sharp: Policy
) -> None:
    answers = [group(*(answer(sharp, done, 64, seed) for seed in range(6)))]
    said = sampled_otherwise(sharp, answers, Sampling(temperature=asked))
    assert said is not None
    assert f"{word} surprising" in said


def test_controls_that_reshape_the_distribution_are_left_alone(sharp: Policy) -> None:
    hot = [group(*(answer(sharp, 3.0, seed=seed) for seed in range(6)))]
    assert sampled_otherwise(sharp, hot, Sampling(temperature=1.0, top_p=0.9)) is None
    penalised = Sampling(temperature=0.0, presence_penalty=1.0)
    assert sampled_otherwise(sharp, hot, penalised) is None
    assert sampled_otherwise(sharp, hot, Sampling(temperature=0.0, top_k=5)) is not None


Saved = dict[str, torch.Tensor]


def _row(index: int) -> Callable[[Saved], Saved]:
    def change(saved: Saved) -> Saved:
        name = next(name for name in saved if saved[name].dim() == 2)
        saved[name][index] += 1e-3
        return saved

    return change


SPOILED: dict[str, Callable[[Saved], Saved]] = {
    "the first row": _row(0),
    "the middle row": lambda saved: _row(next(len(v) // 2 for v in saved.values() if v.dim() == 2))(saved),
    "the last row": _row(-1),
    "rounded": lambda saved: {name: value.bfloat16().float() for name, value in saved.items()},
    "another type": lambda saved: {name: value.double() for name, value in saved.items()},
    "another shape": lambda saved: {name: value[:-1] if value.dim() == 2 else value for name, value in saved.items()},
    "one vector": lambda saved: {name: value * 1.001 if value.dim() == 1 else value for name, value in saved.items()},
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
@pytest.mark.parametrize("model", [{}, {"lora": {"r": 2, "alpha": 4}}], ids=["whole", "adapter"])
def test_weights_on_disk_that_are_not_those_in_memory_are_found(
    spoil: Callable[[Saved], Saved], model: dict[str, Any], tmp_path: Path
) -> None:
    policy = tiny_policy(**model)
    policy.save(tmp_path)
    assert saved_otherwise(policy, tmp_path) == []
    (path,) = tmp_path.glob("*.safetensors")
    before = load_file(path)
    after = spoil({name: value.clone() for name, value in before.items()})
    if all(torch.equal(after[name], before[name]) and after[name].dtype == before[name].dtype for name in before):
        pytest.skip("an adapter has no vectors, and its B begins at 0")
    save_file({name: value.contiguous() for name, value in after.items()}, path, metadata={"format": "pt"})
    assert saved_otherwise(policy, tmp_path)


def held(policy: Policy, change: Callable[[], None], *, later: bool = False) -> list[str]:
    """Codes of what is reported of a change between two steps, over two more steps."""
    watcher = HeldWeights(policy)
    update: Any = Update(2, SimpleNamespace(), 0, later, {})
    assert not list(watcher.before(update))
    watcher.ended()
    assert not list(watcher.before(update))
    change()
    codes = [decision.event.code for decision in watcher.before(update)]
    watcher.ended()
    change()
    return codes + [decision.event.code for decision in watcher.before(update)]


def test_a_weight_that_changes_between_two_steps_is_reported_once_frozen_or_trained() -> None:
    for model in ({}, {"lora": {"r": 2, "alpha": 4}}):
        policy = tiny_policy(**model)
        for pick in (lambda p: p.requires_grad, lambda p: not p.requires_grad):
            weights = [p for p in policy.model.parameters() if pick(p)]
            for weight in weights[:1] + weights[-1:]:
                assert held(policy, lambda weight=weight: weight.data.add_(0.01)) == ["weights-moved"]  # type: ignore[misc]


def test_what_an_update_itself_changes_is_not_reported() -> None:
    policy = tiny_policy()
    assert held(policy, lambda: None) == []
    assert held(policy, lambda: next(policy.model.parameters()).data.add_(0.01), later=True) == []


@pytest.mark.parametrize(
    ("low", "high", "total", "reported"),
    [
        (0.0, 1.0, 1.0, False),
        (0.0, 1.0, 0.0, False),
        (0.0, 1.0, 1.01, True),
        (0.0, 1.0, -0.01, True),
        (-1.0, 0.0, 0.5, True),
        (0.0, 1.0, 1.0 + 1e-9, False),
    ],
)
def test_a_reward_outside_of_what_its_task_declares_is_reported(
    low: float, high: float, total: float, *, reported: bool
) -> None:
    watcher = DeclaredRewards(
        {"echo": SimpleNamespace(reward_range=(low, high)), "free": SimpleNamespace(reward_range=None)}
    )  # type: ignore[dict-item]
    one = group((1,), (2,))
    scored = replace(one, rollouts=(one.rollouts[0], one.rollouts[1].scored(Score(total))))
    free = replace(scored, prompt=replace(scored.prompt, task="free"))
    found = list(watcher.sampled(1, Collected([free, replace(one, rollouts=()), scored])))
    assert [event.code for event in found] == (["reward-out-of-range"] if reported else [])
    assert not reported or f"{total:.4g}" in found[0].message


QUICK: dict[str, Any] = {
    "sft": None,
    "grpo__steps": 2,
    "eval": {"items": 1, "final_items": 1, "sampling": {"max_new_tokens": 2}, "constant": False},
    "log__rollouts_every": 0,
}
IMPORTANCE = {"grpo__loss__importance": "token_truncate"}
SOUND: dict[str, dict[str, Any]] = {
    "two updates": {},
    "three epochs": {"grpo__epochs": 3},
    "cool": {"grpo__sampling__temperature": 0.6},
    "importance": {**IMPORTANCE, "grpo__sampling__temperature": 1.3},
    "top entropy": {"grpo__loss__top_entropy": 0.5},
    "charged to the reward": {"grpo__kl": {"coef": 0.05, "where": "reward", "estimator": "k1"}},
    "cut distribution": {"grpo__sampling__top_p": 0.8, **IMPORTANCE},
    "ahead": {"grpo__async": 1, "grpo__steps": 3, **IMPORTANCE},
    "adapter": {"model__lora": {"r": 2, "alpha": 4}},
    "bfloat16": {"model__dtype": "bfloat16"},
}


def seen(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    train(recipe(folder, **{**QUICK, **changes}), out=folder / "run")
    return [event for event in events(folder / "run") if event["code"] == "ratios-apart"]


@pytest.mark.parametrize("changes", SOUND.values(), ids=SOUND)
def test_in_a_sound_run_the_old_log_probabilities_are_what_the_sampler_recorded(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    assert not seen(tmp_path, **changes)


Real = Callable[..., Any]


def recomputed(change: Callable[[Real, int, tuple[Any, ...]], Any]) -> Any:
    """Recompute otherwise, by the number of the call."""
    calls = iter(range(1000))
    return lambda real: lambda *args, **options: change(lambda *a: real(*a, **options), next(calls), args)


def _hotter(real: Real, call: int, args: tuple[Any, ...]) -> Any:
    policy, groups, temperature, *rest = args
    return real(policy, groups, temperature * (1.5 if call else 1.0), *rest)


def _turned(real: Real, call: int, args: tuple[Any, ...]) -> Any:
    scores = real(*args)
    if not call:
        return scores
    return [[[replace(t, logprobs=t.logprobs[::-1]) for t in turns] for turns in rows] for rows in scores]


def _stale(real: Real, call: int, args: tuple[Any, ...]) -> Any:
    policy = args[0]
    first = next(p for p in policy.model.parameters() if p.dim() == 2)
    now = first.detach().clone()
    with torch.no_grad():
        first.mul_(0.5 if call else 1.0)
        try:
            return real(*args)
        finally:
            first.copy_(now)


AGAINST_THE_RECORD: dict[str, Callable[[Real, int, tuple[Any, ...]], Any]] = {
    "at another temperature": _hotter,
    "in the order of another side": _turned,
    "with a layer of before": _stale,
}


@pytest.mark.parametrize("fault", AGAINST_THE_RECORD.values(), ids=AGAINST_THE_RECORD)
def test_what_is_recomputed_otherwise_from_the_second_step_on_is_reported_there(
    fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = recomputed(fault)
    monkeypatch.setattr(levelhead.training.grpo, "recompute_logprobs", make(levelhead.training.grpo.recompute_logprobs))
    (event,) = seen(tmp_path, **IMPORTANCE)
    assert (event["step"], event["severity"]) == (2, "critical")
    assert "recomputed log-probabilities" in event["message"]
    assert "采样端" in event["message_zh"]


@contextlib.contextmanager
def recorded(change: Callable[[Sequence[Group]], list[Group]]) -> Iterator[None]:
    """Change what the sampler recorded, from the second batch on."""
    real, calls = Collector._answers, iter(range(1000))

    async def answers(self: Collector, *args: Any) -> list[Group]:
        groups: list[Group] = await real(self, *args)
        trains = any(len(group.rollouts) > 1 for group in groups)
        return change(groups) if trains and next(calls) else groups

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Collector, "_answers", answers)
        yield


def _told(group: Group, change: Callable[[tuple[float, ...]], tuple[float, ...]]) -> Group:
    rollouts = [
        replace(r, turns=tuple(replace(t, logprobs=change(t.logprobs)) for t in r.turns)) for r in group.rollouts
    ]
    return replace(group, rollouts=tuple(rollouts))


RECORDS: dict[str, Callable[[Sequence[Group]], list[Group]]] = {
    "of a cooler policy": lambda groups: [_told(g, lambda logp: tuple(0.8 * x for x in logp)) for g in groups],
    "one token late": lambda groups: [_told(g, lambda logp: logp[-1:] + logp[:-1]) for g in groups],
    "of the last group, wrong": lambda groups: [
        *groups[:-1],
        *(_told(g, lambda logp: tuple(x - 0.5 for x in logp)) for g in groups[-1:]),
    ],
}


@pytest.mark.parametrize("change", RECORDS.values(), ids=RECORDS)
def test_a_record_that_goes_wrong_while_training_is_reported(change: Any, tmp_path: Path) -> None:
    with recorded(change):
        (event,) = seen(tmp_path)
    assert event["step"] >= 2
    assert "the policy's own log-probabilities" in event["message"]
