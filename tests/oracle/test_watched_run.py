"""Whole runs are worked out once more while they go on: updates, batches, advantages and numbers are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from levelhead.api import train
from levelhead.policy.policy import Policy
from levelhead.training import optim
from levelhead.training.coefficients import Coefficients
from levelhead.training.optim import Updater
from oracle.watched_run import Watched, watching
from small_run import recipe

QUICK: dict[str, Any] = {
    "sft__steps": 2,
    "grpo__steps": 3,
    "grpo__batch_size": 6,
    "grpo__audit": {"first": 1},
    "eval__items": 1,
    "eval__final_items": 1,
    "eval__constant": False,
    "log__rollouts_every": 0,
}


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


def watched(folder: Path, **changes: Any) -> Watched:
    document = recipe(folder, **{**QUICK, **changes})
    with watching(document) as result:
        train(document, out=folder / "run")
    return result


SOUND: dict[str, dict[str, Any]] = {
    "half precision, adapters, one batch ahead": {
        "model__dtype": "bfloat16", "model__lora": {"r": 2}, "grpo__async": 1, "grpo__merge": {"kind": "pcgrad"},
    },
    "epochs, other tasks' weights, decay": {
        "grpo__epochs": 2, "tasks__0__weight": 3.0, "tasks__1__kl": 0.0, "grpo__optimizer__weight_decay": 0.1,
        "sft__optimizer__kind": "muon", "grpo__merge": {"kind": "cagrad"}, "grpo__audit": {"first": 4},
    },
    "Muon, and a guard that shortens": {
        "grpo__optimizer__kind": "muon", "guard": {"policy": "protect", "max_kl": 0.01},
        "grpo__advantage__kind": "rloo",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SOUND))
def test_a_run_is_what_the_papers_make_of_it(name: str, tmp_path: Path) -> None:
    result = watched(tmp_path, **SOUND[name])
    assert result.violations == []
    assert result.updates > 4
    assert result.looks["batch"] > 2
    assert result.looks["update"] > 2
    # Muon's audit has no slopes, by which the oracle tells it from a rehearsal.
    assert result.looks["audit"] >= (0 if name.startswith("Muon") else 1)


def reference_at_another_temperature(patch: pytest.MonkeyPatch) -> None:
    real = Policy.reference_logp
    patch.setattr(Policy, "reference_logp", lambda self, batch, temperature: real(self, batch, 1.5 * temperature))


def reference_of_before(patch: pytest.MonkeyPatch) -> None:
    real = Policy.keep_reference

    def keep(self: Policy, *, trained: bool) -> None:
        real(self, trained=trained)
        assert isinstance(self._reference, torch.nn.Module)
        for weight in self._reference.parameters():
            weight.data *= 1.1

    patch.setattr(Policy, "keep_reference", keep)


def policy_in_another_mode(patch: pytest.MonkeyPatch) -> None:
    real = Policy.score

    def score(self: Policy, batch: Any, temperature: float = 1.0) -> Any:
        return real(self, batch, 0.7 * temperature)

    patch.setattr(Policy, "score", score)


@pytest.mark.parametrize("break_it", [reference_at_another_temperature, reference_of_before, policy_in_another_mode])
def test_a_policy_that_begins_away_from_its_reference_is_found(
    break_it: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    assert "kl-at-start" in watched(tmp_path, grpo__steps=1).codes


def twice_the_entropy(patch: pytest.MonkeyPatch) -> None:
    real = Coefficients.entropy.fget  # type: ignore[attr-defined]
    patch.setattr(Coefficients, "entropy", property(lambda self: 2 * real(self)))


def other_schedule(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(optim, "schedule", lambda recipe, done, steps: 0.5**done)


def twice_the_rate(patch: pytest.MonkeyPatch) -> None:
    real = optim.schedule
    patch.setattr(optim, "schedule", lambda recipe, done, steps: 2 * real(recipe, done, steps))


def one_update_without(patch: pytest.MonkeyPatch) -> None:
    real = optim.schedule
    patch.setattr(optim, "schedule", lambda recipe, done, steps: real(recipe, done, steps) * (done != 1))


def no_decay(patch: pytest.MonkeyPatch) -> None:
    real = optim._make_optimizer

    def make(*args: Any) -> Any:
        made = real(*args)
        for group in made.param_groups:
            group["weight_decay"] = 0.5
        return made

    patch.setattr(optim, "_make_optimizer", make)


def last_weight_left_out(patch: pytest.MonkeyPatch) -> None:
    real = optim._make_optimizer
    patch.setattr(optim, "_make_optimizer", lambda parameters, *rest: real(parameters[:-1], *rest))


def uphill(patch: pytest.MonkeyPatch) -> None:
    real = Updater.step

    def step(self: Updater) -> None:
        for group in self.optimizer.param_groups:
            group["maximize"] = True
        real(self)

    patch.setattr(Updater, "step", step)


@pytest.mark.parametrize(
    ("break_it", "code"),
    [
        (twice_the_entropy, "coefficient"),
        (other_schedule, "learning-rate"),
        (twice_the_rate, "learning-rate"),
        (one_update_without, "learning-rate"),
        (no_decay, "optimizer-settings"),
        (last_weight_left_out, "optimizer-coverage"),
        (uphill, "optimizer-arithmetic"),
    ],
)
def test_what_is_broken_is_found(
    break_it: Callable[[pytest.MonkeyPatch], None], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    unaudited = {"first": 0, "every": 0}
    result = watched(tmp_path, grpo__steps=1, grpo__optimizer__weight_decay=0.1, grpo__audit=unaudited)
    assert code in result.codes
