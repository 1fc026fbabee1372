"""Each check of rewards on their way goes red when what it guards is broken, in three ways at least."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faults.known import inject
from levelhead.objective.shaping import RewardShaping
from levelhead.preflight import preflight
from levelhead.preflight.check import Outcome, Status
from levelhead.records import Score
from levelhead.tasks.function import FunctionTask
from levelhead.tasks.math import MathTask
from levelhead.text.codec import Codec
from levelhead.training.prepare import prepare
from night import cases
from oracle.run import preflight as prove
from preflight_setup import ROWS, closeness, recipe_of, setup_of

Patch = pytest.MonkeyPatch
SHAPING = "tasks.0.shaping={scale: 2, clip: [-1, 1.5], length: {kind: per_token, coef: 0.5}}"


def exact(prompts: Sequence[Any], completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """1 for the answer, 0 for any other."""
    return [float(value == 1) for value in closeness(prompts, completions, answer)]


def first_check(name: str, family: str, *settings: str, reward: Any = closeness) -> Any:
    made = prove if family == "roundtrip" else preflight
    report = made(setup_of(*settings, reward=reward), families=[family])
    return next(check for check in report.checks if check.name == name)


def decoded(change: Callable[[str], str]) -> Callable[[Patch], None]:
    def mutate(patch: Patch) -> None:
        real = Codec.decode
        patch.setattr(Codec, "decode", lambda self, ids, *rest: change(real(self, ids, *rest)))

    return mutate


def scored(change: Callable[[Score], Score], task: Any = FunctionTask) -> Callable[[Patch], None]:
    def mutate(patch: Patch) -> None:
        real = task.score_batch

        async def score_batch(self: Any, answers: Any) -> list[Any]:
            return [None if score is None else change(score) for score in await real(self, answers)]

        patch.setattr(task, "score_batch", score_batch)

    return mutate


def parts_alone(score: Score) -> Score:
    """Every part weighs 1."""
    return replace(score, total=sum(score.parts.values()))


def scale_forgotten(patch: Patch) -> None:
    real = RewardShaping.__call__
    patch.setattr(RewardShaping, "__call__", lambda self, *a, **k: real(replace(self, scale=1.0), *a, **k))


def length_rewarded(patch: Patch) -> None:
    real = RewardShaping.__call__

    def call(self: RewardShaping, batch: Any, state: Any) -> Any:
        return real(self, replace(batch, lengths_gk=-batch.lengths_gk + 2 * batch.lengths_gk.mean()), state)

    patch.setattr(RewardShaping, "__call__", call)


def clipped_first(patch: Patch) -> None:
    real = RewardShaping.__call__

    def call(self: RewardShaping, batch: Any, state: Any) -> Any:
        clipped = replace(batch, rewards_gk=np.clip(batch.rewards_gk, *(self.clip or (-9, 9))))
        return real(replace(self, clip=None), clipped, state)

    patch.setattr(RewardShaping, "__call__", call)


MUTATIONS = [
    ("rewards/round-trip/echo", decoded(str.swapcase), (), closeness, "fail"),
    ("rewards/round-trip/echo", decoded(lambda text: " " + text), (), closeness, "fail"),
    ("rewards/round-trip/math", decoded(lambda text: text.replace("#", "")), (), closeness, "fail"),
    ("rewards/total/echo", scored(lambda s: replace(s, total=2 * s.total)), (), closeness, "fail"),
    ("rewards/total/echo", scored(parts_alone), ("tasks.0.reward_weights=[0.5]",), closeness, "fail"),
    ("rewards/total/math", scored(parts_alone, MathTask), (), closeness, "fail"),
    ("rewards/total/math", scored(lambda s: replace(s, total=s.total + 0.01), MathTask), (), closeness, "fail"),
    ("rewards/range/math", scored(lambda s: replace(s, total=2 * s.total), MathTask), (), closeness, "fail"),
    ("rewards/range/math", scored(lambda s: replace(s, total=0.5 * s.total), MathTask), (), closeness, "fail"),
    ("rewards/range/math", scored(lambda s: replace(s, total=max(s.total, 0.1)), MathTask), (), closeness, "warn"),
    ("rewards/range/echo", lambda _: None, ("tasks.0.reward_range=[0, 2]",), exact, "fail"),
    ("rewards/shaped", scale_forgotten, (SHAPING,), closeness, "fail"),
    ("rewards/shaped", length_rewarded, (SHAPING,), closeness, "fail"),
    ("rewards/shaped", clipped_first, (SHAPING,), closeness, "fail"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "mutate", "settings", "reward", "status"), MUTATIONS)
def test_a_reward_that_is_changed_on_its_way_is_seen(
    name: str, mutate: Any, settings: tuple[str, ...], reward: Any, status: Status, monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    family = "roundtrip" if name.startswith(("rewards/total", "rewards/shaped")) else name.rpartition("/")[0]
    assert first_check(name, family, *settings, reward=reward).status == status


CALLS = {"n": 0}


def on_a_coin(prompts: Any, completions: Any, **_: Any) -> list[float]:
    return [float(random.random() < 0.5) for _ in completions]


def by_the_year(prompts: Any, completions: Any, **columns: Any) -> list[float]:
    year = dt.datetime.now(dt.UTC).year
    return [value * (year - 2000) for value in closeness(prompts, completions, **columns)]


def by_the_number_of_calls(prompts: Any, completions: Any, **columns: Any) -> list[float]:
    CALLS["n"] += 1
    return [value / CALLS["n"] for value in closeness(prompts, completions, **columns)]


def seeded_once(prompts: Any, completions: Any, **columns: Any) -> list[float]:
    state = np.random.get_state()[1][0]  # noqa: NPY002 - what users write
    return [value + float(state % 97) for value in closeness(prompts, completions, **columns)]


def above_the_mean(prompts: Any, completions: Any, **columns: Any) -> list[float]:
    values = closeness(prompts, completions, **columns)
    return [value - sum(values) / len(values) for value in values]


def by_its_place(prompts: Any, completions: Any, **columns: Any) -> list[float]:
    return [value + 0.1 * i for i, value in enumerate(closeness(prompts, completions, **columns))]


def backwards(prompts: Any, completions: Any, **columns: Any) -> list[float]:
    return closeness(prompts, completions, **columns)[::-1]


@pytest.mark.parametrize(
    ("reward", "status", "said"),
    [
        (on_a_coin, "fail", "asked for twice"),
        (by_the_number_of_calls, "fail", "asked for twice"),
        (by_the_year, "warn", "the clock"),
        (seeded_once, "fail", "global random numbers"),
        (above_the_mean, "warn", "the rest of the batch"),
        (by_its_place, "warn", "the order or the rest of the batch"),
        (backwards, "fail", "out of step"),
    ],
)
def test_a_reward_that_depends_on_more_than_the_answer_is_seen(reward: Any, status: Status, said: str) -> None:
    check = first_check("rewards/steady/echo", "rewards/steady", reward=reward)
    assert check.status == status, check.evidence
    assert said in check.message


REWARD = """
import os
def closeness(completions, answer, **_):
    # A set of words has another order in every process.
    first = [list({word for word in c[0]["content"].split()} or {""})[0] if isinstance(c, list) else
             list(set(c.split()) or {""})[0] for c in completions]
    return [%s for f, a in zip(first, answer)]
"""


@pytest.mark.parametrize(
    ("value", "sound"), [("float(len(a))", True), ("float(hash(f) % 7)", False), ("float(os.getpid())", False)]
)
def test_a_reward_that_depends_on_the_process_is_seen(value: str, sound: bool, tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(REWARD % value)
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS))
    settings = [f"tasks.0.path={tmp_path}/rows.jsonl", f"tasks.0.rewards=['{tmp_path}/rewards.py:closeness']"]
    report = preflight(prepare(recipe_of(*settings)), families=["rewards/steady"])
    check = next(check for check in report.checks if check.name == "rewards/steady/echo")
    assert (check.status == "pass") is sound, check.evidence
    assert sound or "the process" in check.message


@pytest.mark.night
@pytest.mark.parametrize("seed", range(cases(2, 5)))
def test_sound_rewards_raise_no_alarm(seed: int) -> None:
    settings = (f"seed={seed}", SHAPING, "tasks.0.reward_weights=[0.5]", "tasks.1.shaping={zscore: {}}")
    report = preflight(setup_of(*settings), families=["rewards", "pairs"])
    assert {check.name: check.message for check in report.checks if check.status != "pass"} == {}


def test_a_declared_range_that_rewards_keep_passes() -> None:
    assert (
        first_check("rewards/range/echo", "rewards/range", "tasks.0.reward_range=[0, 1]", reward=exact).status == "pass"
    )


def test_noisy_scores_in_no_order_stop_no_run() -> None:
    def noisy(prompts: Any, completions: Any, answer: Sequence[str], **_: Any) -> list[float]:
        # Any well-formed answer is a draw of its own, which depends on the answer alone; the rest gets nothing.
        texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
        pairs = zip(texts, prompts, strict=True)
        return [random.Random(f"{t}{p}").random() if t.startswith("It is") else -1.0 for t, p in pairs]

    for seed in range(5):
        report = preflight(setup_of(f"seed={seed}", reward=noisy), families=["rewards/order"])
        order = next(check for check in report.checks if check.name == "rewards/order/echo")
        assert order.status == "pass" or "out of step" in order.message, order.message
        assert order.status != "fail"


def test_an_answer_that_beats_the_perfect_one_always_is_a_finding_unless_that_one_is_a_guess(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [{"prompt": f"Say {n}.", "answer": f"It is {n}."} for n in range(64)]

    def upside(prompts: Any, completions: Any, answer: Sequence[str], **_: Any) -> list[float]:
        texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
        return [0.5 if t == a else 0.6 * t.startswith("It is") for t, a in zip(texts, answer, strict=True)]

    def order() -> Outcome:
        report = preflight(setup_of(reward=upside, rows=rows), families=["rewards/order"])
        return next(check for check in report.checks if check.name == "rewards/order/echo")

    assert order().status == "warn"
    # A workflow that an endpoint runs has no perfect answer that anybody knows: the oracle's is the simulator's guess.
    monkeypatch.setattr(FunctionTask, "guesses", property(lambda _: True))
    assert order().status == "pass"


def test_coins_of_the_lab_are_stopped() -> None:
    with inject("reward-by-chance"):
        assert first_check("rewards/steady/echo", "rewards/steady").status == "fail"
