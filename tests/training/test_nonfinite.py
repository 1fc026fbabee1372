"""Promise 10: nothing that is not finite reaches the weights, and no step is lost."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from levelhead.api import Result, train
from levelhead.policy.packing import MicroBatch
from levelhead.policy.policy import Policy, TokenStats
from levelhead.training.optim import Updater
from small_run import events, recipe, steps


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


def spoil_gradient(monkeypatch: pytest.MonkeyPatch, value: float, steps: set[int], length: int) -> list[int]:
    """Put a number into one entry of the gradient before it is clipped, in a stage of ``length`` updates."""
    real, spoilt = Updater.prepare, []

    def prepare(self: Updater) -> float:
        if self.steps == length and self.done in steps:
            self.parameters[-1].grad.view(-1)[0] = value
            spoilt.append(self.done)
        return real(self)

    monkeypatch.setattr(Updater, "prepare", prepare)
    return spoilt


def finite(result: Result) -> bool:
    return all(bool(torch.isfinite(p).all()) for p in result.model.parameters())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_skipped_and_told(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt = spoil_gradient(monkeypatch, value, {3}, 8)
    result = train(recipe(tmp_path), out=tmp_path / "run")
    assert spoilt == [3]
    assert result.outcome == "done"
    assert finite(result)
    (event,) = events(result.folder)
    assert (event["step"], event["code"], event["action"]) == (2, "nonfinite", "skip")
    assert len(steps(result.folder, "grpo")) == 4


def test_logits_that_are_not_finite_are_skipped_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = Policy.score, []

    def score(self: Policy, batch: MicroBatch, temperature: float = 1.0) -> TokenStats:
        stats = real(self, batch, temperature)
        calls.append(batch)
        return replace(stats, logp=stats.logp * math.nan) if len(calls) == 2 else stats

    monkeypatch.setattr(Policy, "score", score)
    given = recipe(tmp_path, sft=None, guard={"policy": "off"}, grpo__audit={"first": 0})
    result = train(given, out=tmp_path / "run")
    assert result.outcome == "done"
    assert finite(result)
    assert [event["code"] for event in events(result.folder)] == ["nonfinite"]
    assert len(steps(result.folder, "grpo")) == 4


def test_five_steps_in_a_row_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil_gradient(monkeypatch, math.nan, set(range(1, 40)), 7)
    given = recipe(tmp_path, sft=None, grpo__steps=7, grpo__updates_per_batch=1, eval__final_items=1)
    result = train(given, out=tmp_path / "run")
    assert result.outcome == "stopped"
    assert finite(result)
    told = events(result.folder)
    assert [event["action"] for event in told] == ["skip"] * 5 + ["stop"]
    assert told[-1]["severity"] == "critical"
    assert [row["step"] for row in steps(result.folder, "grpo")] == [1, 2, 3, 4, 5, 6]


def test_fine_tuning_skips_and_stops_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil_gradient(monkeypatch, math.nan, {1, 3, 4, 5, 6, 7}, 9)
    given: dict[str, Any] = recipe(tmp_path, grpo=None, sft__steps=9, eval__final_items=1)
    result = train(given, out=tmp_path / "run")
    assert result.outcome == "stopped"
    assert finite(result)
    assert [event["step"] for event in events(result.folder)] == [2, 4, 5, 6, 7, 8, 8]
