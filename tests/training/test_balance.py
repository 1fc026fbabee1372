"""Strata of a balanced task weigh alike in a batch, whatever is drawn of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.api import train
from levelhead.errors import InputError
from levelhead.recipe.training import Grpo
from levelhead.records import Group, Prompt, Rollout, Score, Turn
from levelhead.tasks.function.task import FunctionTask
from levelhead.training.advantages import AdvantageEstimator, group_weights
from levelhead.training.batch import make_batch
from small_run import recipe, steps


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=40))
@settings(deadline=None)
def test_strata_weigh_alike_and_groups_weigh_one_on_average(strata: list[str]) -> None:
    weights = group_weights(strata)
    whole: dict[str, float] = defaultdict(float)
    for stratum, weight in zip(strata, weights, strict=True):
        whole[stratum] += weight
    assert sum(weights) == pytest.approx(len(strata))
    assert list(whole.values()) == pytest.approx([len(strata) / len(whole)] * len(whole))


def test_no_groups_and_a_single_stratum_weigh_what_they_did() -> None:
    assert group_weights([]) == []
    assert group_weights(["a"] * 7) == [1.0] * 7


def group(task: str, condition: str, rewards: tuple[float, ...]) -> Group:
    turn = Turn((1, 2), (3, 4), (-1.0, -1.0), (-1.0, -1.0), "stop")
    rollouts = tuple(Rollout("p", (turn,), Score(reward)) for reward in rewards)
    return Group(Prompt("p", task, (), facts={"condition": condition}), rollouts)


def test_weights_are_those_of_a_tasks_own_groups_those_without_contrast_or_rollouts_included() -> None:
    task: Any = SimpleNamespace(strata=lambda prompt: {"condition": prompt.facts["condition"], "other": "x"})
    groups = [
        group("fair", "ambig", (0.0, 1.0)),
        group("fair", "ambig", (1.0, 1.0)),  # no contrast
        group("plain", "ambig", (0.0, 1.0)),
        group("fair", "ambig", (1.0, 0.0)),
        group("fair", "disambig", (1.0, 0.0)),
        group("fair", "disambig", ()),  # nothing could be scored
    ]
    made = AdvantageEstimator(Grpo(group_size=2, batch_size=12), {}, balanced={"fair": task})
    group_advantages, values = made.assign(groups, None, {"fair": 0.0, "plain": 0.0})
    assert [credit.weight for credit in group_advantages] == pytest.approx([2 / 3, 2 / 3, 1.0, 2 / 3, 2.0, 1.0])
    assert values == pytest.approx({"balance/fair/ambig": 2 / 3, "balance/fair/disambig": 2.0})
    batch = make_batch(groups, group_advantages)
    assert [[s.balance for s in samples] for samples in batch.groups][4] == [2.0, 2.0]
    # Advantages, and with them what is measured of them, are not touched.
    plain, _ = AdvantageEstimator(Grpo(group_size=2, batch_size=12), {}).assign(
        groups, None, {"fair": 0.0, "plain": 0.0}
    )
    assert [replace(credit, weight=1.0) for credit in group_advantages] == plain


def halves(_: FunctionTask, prompt: Prompt) -> Mapping[str, str]:
    return {"half": "low" if sum(map(ord, str(prompt.messages[-1]["content"]))) % 3 else "high"}


def test_a_balanced_run_says_its_weights_and_goes_another_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)
    document = {**recipe(tmp_path, grpo__batch_size=18, grpo__steps=2), "sft": None}
    train(document, out=tmp_path / "plain")
    monkeypatch.setattr(FunctionTask, "strata", halves)
    train(document, out=tmp_path / "off")
    document["tasks"][0]["balance"] = True
    train(document, out=tmp_path / "on")
    plain, off, on = (steps(tmp_path / name, "grpo") for name in ("plain", "off", "on"))
    assert plain == off
    weights = {name: value for row in on for name, value in row.items() if name.startswith("balance/")}
    assert set(weights) <= {"balance/one/low", "balance/one/high"}
    assert weights
    assert on[0]["reward"] == plain[0]["reward"]
    assert set(weights.values()) != {1.0}
    assert [row["grad_norm"] for row in on] != [row["grad_norm"] for row in plain]


def test_a_task_without_strata_cannot_be_balanced(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tasks.1.balance: task 'two' names no strata to balance; remove the key"):
        train(recipe(tmp_path, tasks__1__balance=True), out=tmp_path / "run")
