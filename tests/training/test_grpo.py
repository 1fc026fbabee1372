"""Whole runs of the reinforcement stage, a few steps each."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from levelhead.api import train
from levelhead.errors import InputError
from levelhead.policy.policy import Policy
from levelhead.records import Decision, Event, StepRecord
from levelhead.training import grpo as grpo_module
from levelhead.training.batch import Batch, Sample
from small_run import metrics, recipe, same_weights, steps

ALIKE = {"grpo__kl": {}, "grpo__entropy": {}, "sft": None}


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


def reward(folder: Path, name: str) -> dict[str, Any]:
    """Give both tasks the same reward function."""
    return {f"tasks__{i}__rewards": [f"{folder / 'rewards.py'}:{name}"] for i in range(2)}


def test_rollouts_are_scored_at_the_temperature_they_were_drawn_at(tmp_path: Path) -> None:
    schedule = {"temperature": 1.2, "temperature_schedule": "linear", "temperature_final": 0.4, "max_new_tokens": 6}
    given = recipe(tmp_path, sft=None, grpo__sampling=schedule, grpo__updates_per_batch=1)
    train(given, out=tmp_path / "run")
    gaps = [row["sampling/sampling_logp_difference/max"] for row in steps(tmp_path / "run", "grpo")]
    assert len(gaps) == 4
    assert max(gaps) < 1e-4


def test_a_run_without_contrast_changes_nothing_and_pays_for_no_forward_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Policy, "score", None)
    runs = [
        train(recipe(tmp_path, **ALIKE, **reward(tmp_path, "same"), grpo__steps=n), out=tmp_path / str(n))
        for n in (1, 3)
    ]
    assert same_weights(runs[0].model, runs[1].model)
    row = steps(runs[1].folder, "grpo")[-1]
    assert row["frac_reward_zero_std"] == row["dead_groups/all_solved"] == 1.0
    assert row["dead_groups/all_failed"] == row["live_groups"] == row["grad_norm"] == row["loss"] == 0.0


ESTIMATORS: list[dict[str, Any]] = [
    {"kind": "gtpo"},
    {"kind": "gdpo", "weights": {"parity": 2.0}, "statistics": "tokens"},
    {"kind": "workflow_aware", "feature_weights": {"parity": 1.0}},
    {"kind": "opo"},
    {"kind": "reinforce_pp_baseline", "statistics": "tokens"},
    {"kind": "pkpo", "k": 2},
]


@pytest.mark.parametrize("advantage", ESTIMATORS, ids=lambda a: a["kind"])
def test_every_kind_of_estimator_has_what_it_needs(tmp_path: Path, advantage: dict[str, Any]) -> None:
    given = recipe(tmp_path, sft=None, grpo__steps=1, grpo__advantage=advantage, **reward(tmp_path, "parity"))
    (row,) = steps(train(given, out=tmp_path / "run").folder, "grpo")
    assert 0 < row["grad_norm"] < math.inf


def test_an_estimator_without_its_features_is_an_input_error(tmp_path: Path) -> None:
    given = recipe(tmp_path, sft=None, grpo__advantage={"kind": "workflow_aware"})
    with pytest.raises(InputError, match=r"workflow_aware: task '\w+' reports no 'diversity'"):
        train(given, out=tmp_path / "run")


def test_rollouts_that_cannot_be_scored_are_dropped_and_counted(tmp_path: Path) -> None:
    given = recipe(tmp_path, sft=None, grpo__steps=2, tasks__0__on_reward_error="drop")
    (tmp_path / "odd.py").write_text(
        "def odd(prompts, completions, completion_ids, **columns):\n"
        "    return [None if sum(ids) % 3 == 0 else float(sum(ids) % 2) for ids in completion_ids]\n",
        encoding="utf-8",
    )
    given["tasks"][0]["rewards"] = [f"{tmp_path / 'odd.py'}:odd"]
    rows = steps(train(given, out=tmp_path / "run").folder, "grpo")
    assert sum(row["dropped_rollouts"] for row in rows) > 0
    assert all(row["dropped_rollouts"] < 6 for row in rows)


class Skips:
    """A guard that lets no update through."""

    def before_update(self, record: StepRecord) -> list[Decision]:
        return [Decision("skip", Event(record.step, "test", "warning", "no", "skip"))]

    def after_update(self, record: StepRecord) -> list[Decision]:
        stop = record.step == 3
        return [Decision("stop", Event(record.step, "test", "critical", "enough", "stop"))] if stop else []


def test_an_observer_can_skip_updates_and_stop_the_run(tmp_path: Path) -> None:
    still = train(recipe(tmp_path, **ALIKE, **reward(tmp_path, "same"), grpo__steps=1), out=tmp_path / "still")
    result = train(recipe(tmp_path, **ALIKE), out=tmp_path / "run", observers=[Skips()])
    assert result.outcome == "stopped"
    assert same_weights(result.model, still.model)
    assert [row["step"] for row in steps(result.folder, "grpo")] == [1, 2, 3]


def test_an_observer_that_does_nothing_changes_nothing(tmp_path: Path) -> None:
    class Watches:
        def before_update(self, record: StepRecord) -> list[Decision]:
            return []

        after_update = before_update

    given = recipe(tmp_path, sft=None, grpo__steps=2)
    one = train(given, out=tmp_path / "one", observers=[Watches()])
    two = train(given, out=tmp_path / "two")
    assert metrics(one.folder) == metrics(two.folder)
    assert same_weights(one.model, two.model)


def test_every_step_has_a_line_and_the_learning_rate_of_its_schedule(tmp_path: Path) -> None:
    rows = steps(train(recipe(tmp_path, sft=None), out=tmp_path / "run").folder, "grpo")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    rates = [row["learning_rate"] for row in rows]
    assert all(a > b for a, b in itertools.pairwise(rates))
    # Eight updates of a linear schedule from the peak to 0, two a step.
    assert rates[0] == pytest.approx(3e-3 * (1 - 0.5 / 7))
    assert rates[-1] == pytest.approx(3e-3 * (0.5 / 7))


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize(("parts", "weight"), [(2, 1.0), (4, 1.0), (2, 3.0)])
def test_every_minibatch_has_its_share_of_each_task(
    parts: int, weight: float, epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, updates = grpo_module.deal_minibatches, []

    def minibatches(batch: Batch, *rest: Any) -> list[list[Sample]]:
        updates.append(real(batch, *rest))
        return updates[-1]

    monkeypatch.setattr(grpo_module, "deal_minibatches", minibatches)
    shape = {"grpo__batch_size": 24, "grpo__group_size": 3, "grpo__updates_per_batch": parts, "grpo__epochs": epochs}
    train(recipe(tmp_path, sft=None, tasks__0__weight=weight, grpo__steps=2, **shape), out=tmp_path / "run")
    wanted = {"one": 12 * 2 * weight / (1 + weight), "two": 12 * 2 / (1 + weight)}
    for minibatch in itertools.chain.from_iterable(updates):
        assert Counter(sample.task for sample in minibatch) == {name: n / parts for name, n in wanted.items()}
