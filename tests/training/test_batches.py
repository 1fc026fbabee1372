"""A batch drawn ahead: the same numbers whatever the timing, by older weights that the loss corrects for."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from levelhead.api import Result, train
from levelhead.guard import LiveGuard
from levelhead.recipe.guard import Guard as Bounds
from levelhead.records import Change, CoefficientOverrides, Decision, Event, StepRecord
from small_run import events, recipe, steps

SMALL = {"sft": None, "eval__final_items": 1, "checkpoint__every": 0, "grpo__audit__first": 0}


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Any:
    before = set(threading.enumerate())
    yield
    left = set(threading.enumerate()) - before
    assert [thread.name for thread in left if thread.name.startswith("levelhead")] == []


def run(folder: Path, name: str, observers: Sequence[Any] = (), **changes: Any) -> Result:
    data = folder / name
    data.mkdir()
    return train(recipe(data, **{**SMALL, "grpo__async": 1, **changes}), out=data / "run", observers=observers)


@pytest.mark.parametrize("kind", ["ppo_clip", "cispo", "gspo"])
def test_the_loss_sees_how_far_the_policy_has_moved(tmp_path: Path, kind: str) -> None:
    result = run(tmp_path, "run", grpo__updates_per_batch=1, grpo__loss__kind=kind)
    first, *others = steps(result.folder, "grpo")
    assert first["sampling/sampling_logp_difference/mean"] < 1e-5
    assert first["ratio/mean"] == pytest.approx(1, abs=1e-5)
    for row in others:
        assert row["sampling/sampling_logp_difference/mean"] > 1e-3
        assert 1e-6 < abs(row["ratio/mean"] - 1) < 1


@pytest.mark.parametrize("updates", [1, 2])
def test_an_importance_correction_leads_from_the_weights_that_drew_to_those_of_the_step(
    tmp_path: Path, updates: int
) -> None:
    importance = {"importance": "token_truncate", "importance_high": 1.05}
    given = {"grpo__loss": importance, "grpo__updates_per_batch": updates}
    first, *others = steps(run(tmp_path, "run", **given).folder, "grpo")
    assert first["sampling/importance_sampling_ratio/mean"] == pytest.approx(1, abs=1e-5)
    assert first["sampling/importance_sampling_ratio/cut_mean"] == 0
    for row in others:
        assert 0 < row["sampling/importance_sampling_ratio/cut_mean"] < 1
        if updates == 1:  # the ratio is that of the step's own updates
            assert row["ratio/mean"] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("updates", [1, 2])
def test_older_weights_with_a_correction_are_no_mismatch_of_sampler_and_trainer(tmp_path: Path, updates: int) -> None:
    given = {"grpo__loss": {"importance": "token_truncate"}, "grpo__updates_per_batch": updates}
    result = run(tmp_path, "run", **given)
    beyond = "sampling/logp_difference_beyond_rounding"
    first, *others = steps(result.folder, "grpo")
    assert first[beyond] == 0
    assert not any(beyond in row for row in others)
    assert "logprob-mismatch" not in {event["code"] for event in events(result.folder)}


def test_scores_made_beforehand_are_no_old_log_probabilities_of_a_batch_drawn_ahead(tmp_path: Path) -> None:
    result = run(tmp_path, "run", grpo__updates_per_batch=1, grpo__loss__top_entropy=0.5)
    _, *others = steps(result.folder, "grpo")
    assert all(abs(row["ratio/mean"] - 1) > 1e-6 for row in others)


class Scripted(LiveGuard):
    """A guard that decides what it is told, by step, and keeps every weight that has drawn."""

    def __init__(self, script: dict[int, tuple[str, CoefficientOverrides]]) -> None:
        super().__init__(Bounds())
        self.script = script

    @property
    def keeps(self) -> bool:
        return True

    def judge(self, step: int, trials: Sequence[Change]) -> Decision | None:
        return None

    def before_update(self, record: StepRecord) -> list[Decision]:
        return []

    def after_update(self, record: StepRecord) -> list[Decision]:
        if record.step not in self.script:
            return []
        kind, self._overrides = self.script[record.step]
        return [Decision(kind, Event(record.step, "scripted", "critical", "as told", kind, {}))]  # type: ignore[arg-type]


def test_a_knob_turns_the_temperature_of_the_batch_after_the_next(tmp_path: Path) -> None:
    guard = Scripted({1: ("adapt", CoefficientOverrides(temperature=2.0))})
    given = {"grpo__optimizer__learning_rate": 1e-12, "grpo__updates_per_batch": 1}
    result = run(tmp_path, "run", [guard], **given)
    rows = steps(result.folder, "grpo")
    # Scored at the temperature that it was drawn at: still weights give every token what the sampler gave it.
    assert max(row["sampling/sampling_logp_difference/max"] for row in rows) < 1e-4
    cold = steps(run(tmp_path, "cold", [Scripted({})], **given).folder, "grpo")
    assert [a["entropy"] == pytest.approx(b["entropy"], abs=1e-4) for a, b in zip(rows, cold, strict=True)] == [
        True,
        True,
        False,
        False,
    ]


EVEN = """
def even(prompts, completions, completion_ids, **columns):
    return [sum(i % 2 == 0 for i in ids) / len(ids) for ids in completion_ids]
"""


def test_a_policy_learns_from_batches_drawn_ahead(tmp_path: Path) -> None:
    (tmp_path / "even.py").write_text(EVEN, encoding="utf-8")
    tasks = {f"tasks__{i}__rewards": [f"{tmp_path / 'even.py'}:even"] for i in range(2)}
    given = {"grpo__steps": 30, "grpo__batch_size": 32, "grpo__group_size": 8, "grpo__updates_per_batch": 1}
    rows = steps(run(tmp_path, "run", **given, **tasks, guard={"max_kl": 0.2}).folder, "grpo")
    rewards = [row["reward"] for row in rows]
    assert statistics.fmean(rewards[-5:]) > statistics.fmean(rewards[:5]) + 0.12
    assert all(row["off_policy/mean"] == 1 for row in rows[1:])
