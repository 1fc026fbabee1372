"""The guard in a real run: off it is not there, on it is resumable, and what it decides is done and told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from levelhead.api import train
from levelhead.guard import LiveGuard
from levelhead.policy.packing import MicroBatch, TokenSequence
from levelhead.recipe.guard import Guard as Bounds
from levelhead.records import Change, CoefficientOverrides, Decision, Event, StepRecord
from levelhead.training.batch import Sample
from levelhead.training.optim import Updater
from levelhead.training.trust_region import alignment, divergence, old_logp
from night import by_night
from small_run import events, metrics, recipe, same_weights, steps


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


class Scripted(LiveGuard):
    """A guard that decides what it is told, by step."""

    def __init__(self, script: dict[int, tuple[str, CoefficientOverrides]], scale: float | None = None) -> None:
        super().__init__(Bounds())
        self.script, self.scale, self.seen = script, scale, []
        self.changes: list[Change] = []

    @property
    def keeps(self) -> bool:
        return True

    def judge(self, step: int, trials: Sequence[Change]) -> Decision | None:
        if self.scale is None or len(trials) > 1:
            self.changes = list(trials)
            return None
        event = Event(step, "large-update", "warning", "too far", "shrink", {"scale": self.scale})
        return Decision("shrink", event, {"scale": self.scale})

    def before_update(self, record: StepRecord) -> list[Decision]:
        return []

    def after_update(self, record: StepRecord) -> list[Decision]:
        if record.step not in self.script:
            return []
        kind, self._overrides = self.script[record.step]
        return [Decision(kind, Event(record.step, "scripted", "critical", "as told", kind, {}))]  # type: ignore[arg-type]


def run(folder: Path, name: str, observers: Sequence[Any] = (), **changes: Any) -> Any:
    data = folder / name
    data.mkdir()
    shared = {"sft": None, "eval__final_items": 1, "grpo__audit__first": 0, "checkpoint__every": 0}
    return train(recipe(data, **{**shared, **changes}), out=data / "run", observers=observers)


def without_guard(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith("guard/")} for row in rows]


@pytest.fixture(scope="module")
def off(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run without a guard."""
    return run(tmp_path_factory.mktemp("off"), "off", guard={"policy": "off"})


@pytest.mark.parametrize("policy", ["observe", "protect"])
def test_a_guard_that_finds_nothing_leaves_every_bit_alone(policy: str, off: Any, tmp_path: Path) -> None:
    bounds = {"max_kl": 1e9}
    on = run(tmp_path, "on", guard={"policy": policy, **bounds})
    assert same_weights(off.model, on.model)
    assert metrics(off.folder) == without_guard(metrics(on.folder))
    assert all("guard/kl" in row for row in steps(on.folder, "grpo"))
    assert not any(name.startswith("guard/") for row in steps(off.folder, "grpo") for name in row)
    assert events(on.folder) == []


def test_observing_never_touches_a_weight(off: Any, tmp_path: Path) -> None:
    on = run(tmp_path, "on", guard={"policy": "observe", "max_kl": 1e-9})
    assert same_weights(off.model, on.model)
    told = events(on.folder)
    assert {event["action"] for event in told} == {"warn"}
    assert {event["evidence"]["would"] for event in told} >= {"shrink"}


def test_a_step_that_is_undone_leaves_every_bit_of_the_weights(tmp_path: Path) -> None:
    undone = run(tmp_path, "undone", [Scripted({}, scale=0.0)], grpo__steps=1)
    fresh = run(tmp_path, "fresh", [Scripted({}, scale=0.0)], grpo__steps=1, grpo__optimizer__learning_rate=1e-9)
    assert same_weights(undone.model, fresh.model)
    assert [event["evidence"]["kl_after"] for event in events(undone.folder)] == [0.0, 0.0]


def test_a_shortened_step_moves_the_policy_less(tmp_path: Path) -> None:
    half, whole = Scripted({}, scale=0.5), Scripted({})
    one = {"grpo__steps": 1, "grpo__updates_per_batch": 1}
    run(tmp_path, "half", [half], **one)
    run(tmp_path, "whole", [whole], **one)
    assert half.changes[0].kl == whole.changes[0].kl
    assert half.changes[1].kl < 0.6 * half.changes[0].kl


def test_once_a_batch_has_led_too_far_the_rest_of_it_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = {"grpo__steps": 2, "grpo__updates_per_batch": 1, "grpo__epochs": 4, "grpo__optimizer__warmup_steps": 0}
    free = run(tmp_path, "free", guard={"max_kl": 1e9}, **epochs)
    first = steps(free.folder, "grpo")[0]
    assert first["guard/drift"] > first["guard/kl"]
    bound = first["guard/drift"] / 4
    taken: list[int] = []
    real = Updater.step

    def step(self: Updater) -> None:
        taken.append(self.done)
        real(self)

    monkeypatch.setattr(Updater, "step", step)
    held = run(tmp_path, "held", guard={"max_kl": 1e9, "max_batch_kl": bound}, **epochs)
    said = [event for event in events(held.folder) if "left out" in event["message"]]
    assert [event["step"] for event in said] == [1, 2]
    for event in said:
        assert event["evidence"]["drift_before"] <= bound < event["evidence"]["drift"]
        assert event["evidence"]["drift_after"] <= bound
    assert len(taken) < 8
    # The second batch stands where it would in the schedule, whatever was left out of the first.
    assert next(count for count in taken if count >= 4) == 4
    assert 3 not in taken


def test_one_that_only_looks_on_leaves_nothing_of_a_batch_out(tmp_path: Path) -> None:
    epochs = {"grpo__steps": 1, "grpo__updates_per_batch": 1, "grpo__epochs": 3}
    off = run(tmp_path, "off", guard={"policy": "off"}, **epochs)
    on = run(tmp_path, "on", guard={"policy": "observe", "max_kl": 1e9, "max_batch_kl": 1e-9}, **epochs)
    assert same_weights(off.model, on.model)
    assert {event["evidence"]["would"] for event in events(on.folder)} == {"shrink"}


def test_weights_are_where_the_scale_puts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[list[torch.Tensor]] = []
    real = Updater.step

    def step(self: Updater) -> None:
        states.append([p.detach().clone() for p in self.parameters])
        real(self)
        states.append([p.detach().clone() for p in self.parameters])

    monkeypatch.setattr(Updater, "step", step)
    result = run(tmp_path, "run", [Scripted({}, scale=0.25)], grpo__steps=1, grpo__updates_per_batch=1)
    before, after = states
    for old, new, now in zip(before, after, result.model.parameters(), strict=True):
        assert torch.allclose(now, old + 0.25 * (new - old), atol=1e-7)


def test_a_rollback_restores_the_weights_that_drew_the_kept_batch(tmp_path: Path) -> None:
    constant = {"grpo__optimizer__schedule": "constant"}
    # After step 2 the weights that drew its batch are kept: those that step 1 made.  Step 4 moves next to nothing.
    guard = Scripted({3: ("rollback", CoefficientOverrides(learning_rate=1e-12))})
    back = run(tmp_path, "back", [guard], grpo__steps=4, **constant)
    one = run(tmp_path, "one", [Scripted({})], grpo__steps=1, **constant)
    pairs = zip(back.model.parameters(), one.model.parameters(), strict=True)
    assert all(torch.allclose(a, b, atol=1e-8) for a, b in pairs)
    assert [event["action"] for event in events(back.folder)] == ["rollback"]


def test_knobs_reach_the_run(tmp_path: Path) -> None:
    knobs = CoefficientOverrides(learning_rate=0.5, entropy=2.0, entropy_bonus=0.003, kl=4.0)
    result = run(
        tmp_path, "run", [Scripted({1: ("adapt", knobs)})], grpo__steps=2, grpo__optimizer__schedule="constant"
    )
    before, after = steps(result.folder, "grpo")
    assert after["learning_rate"] == 0.5 * before["learning_rate"]
    assert after["entropy_coef"] == pytest.approx(2 * before["entropy_coef"] + 0.003)
    assert after["kl_coef/one"] == 4 * before["kl_coef/one"]


def test_a_stop_leaves_a_score_and_the_exit_code_of_the_guard(tmp_path: Path) -> None:
    result = run(tmp_path, "run", [Scripted({2: ("stop", CoefficientOverrides())})])
    assert result.outcome == "stopped"
    assert len(steps(result.folder, "grpo")) == 2
    assert "grpo" in result.summary["tasks"]["one"]


class Killed(BaseException):
    """Stands in for a process that dies."""


@pytest.mark.parametrize("model", [{}, pytest.param({"model__lora": {"r": 2, "modules_to_save": []}}, marks=by_night)])
def test_a_run_that_was_corrected_resumes_to_the_bit(
    model: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tight = {"policy": "protect", "max_kl": 1e-5, "window": 4}
    changes = {"sft": None, "guard": tight, "grpo__steps": 9, "checkpoint__every": 2, "eval__final_items": 1, **model}
    (tmp_path / "a").mkdir()
    wanted = train(recipe(tmp_path / "a", **changes), out=tmp_path / "a" / "run")
    assert {event["action"] for event in events(wanted.folder)} >= {"shrink", "adapt"}
    (tmp_path / "b").mkdir()
    real = Updater.step

    def update(self: Updater) -> None:
        if self.done == 14:
            raise Killed
        real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Updater, "step", update)
        with pytest.raises(Killed):
            train(recipe(tmp_path / "b", **changes), out=tmp_path / "b" / "run")
    resumed = train(recipe(tmp_path / "b", **changes), out=tmp_path / "b" / "run", resume=True)
    assert metrics(resumed.folder) == metrics(wanted.folder)
    assert events(resumed.folder) == events(wanted.folder)
    assert same_weights(resumed.model, wanted.model)


def test_a_sound_run_agrees_with_itself_and_follows_its_rewards(tmp_path: Path) -> None:
    result = run(tmp_path, "sound", [LiveGuard(Bounds())], grpo__steps=6, grpo__optimizer__learning_rate=1e-3)
    rows = [row for row in metrics(result.folder) if row["stage"] == "grpo"]
    assert all(row["sampling/logp_difference_beyond_rounding"] == 0 for row in rows if row["grad_norm"] > 0)
    agreements = [row["advantages/agreement"] for row in rows if "advantages/agreement" in row]
    alignments = [row["guard/alignment"] for row in rows if "guard/alignment" in row]
    assert len(agreements) >= 3
    assert len(alignments) >= 3
    assert min(agreements) > 0.5
    assert sum(alignments) > 0
    codes = {event["code"] for event in events(result.folder)}
    assert not codes & {"logprob-mismatch", "update-against-reward", "reference-not-frozen"}


def test_the_alignment_is_the_cosine_of_merit_and_change() -> None:
    probe = [_micro((1, 0), (2, 1)), _micro((2,), (3,))]
    change = torch.tensor([0.2, 0.4, -0.1, 0.5, 0.5, 0.5])
    centred_rewards = [-1.0, 3.0, 0.0]
    moved, centred_reward = torch.tensor([0.3, -0.1, 0.5]), torch.tensor([3.0, -1.0, 0.0])
    expected = float(centred_reward @ moved / (centred_reward.norm() * moved.norm()))
    assert alignment(probe, centred_rewards, change) == pytest.approx(expected, rel=1e-6)
    assert alignment(probe, centred_rewards, -change) == pytest.approx(-expected, rel=1e-6)
    assert alignment(probe, [0.0, 1.0, 0.0], change) is None
    assert alignment(probe, centred_rewards, 0 * change) is None
    assert alignment(probe, centred_rewards, change * torch.inf) is None


def test_a_divergence_is_the_mean_of_the_third_estimator() -> None:
    before, after = torch.tensor([-1.0, -2.0]), torch.tensor([-0.5, -2.5])
    assert divergence(before, after) == pytest.approx((math.exp(0.5) - 1.5 + math.exp(-0.5) - 0.5) / 2, rel=1e-6)
    assert divergence(before, before) == 0
    assert divergence(before, after * torch.nan) == math.inf


def test_old_logprobabilities_follow_the_order_of_the_probe() -> None:
    def sample(*logprobs: float, old: tuple[float, ...] | None = None) -> Sample:
        return Sample(TokenSequence((1,), (2,) * len(logprobs)), "one", 0.0, logprobs, 1.0, True, False, old=old)

    probed = [sample(-1.0), sample(-2.0, -3.0), sample(-4.0, -5.0, old=(-6.0, -7.0))]
    probe = [_micro((2, 0), (2, 1)), _micro((1,), (2,))]
    assert old_logp(probe, probed, torch.zeros(5)).tolist() == [-6.0, -7.0, -1.0, -2.0, -3.0]


def _micro(indices: tuple[int, ...], lengths: tuple[int, ...]) -> MicroBatch:
    empty = torch.zeros(0, dtype=torch.long)
    return MicroBatch(indices, empty, None, None, empty, empty, lengths)
