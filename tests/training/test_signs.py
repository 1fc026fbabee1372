"""The audit of a run's updates where passes round: sound runs go on, signs are told, and nothing else changes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import levelhead.objective.aggregation.merger as merging
from levelhead.api import train
from levelhead.objective.audit import SignError
from levelhead.objective.terms import Term
from levelhead.training import signs
from night import by_night
from small_run import events, recipe, same_weights, steps


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


def run(folder: Path, name: str = "run", **changes: Any) -> Any:
    """Two updates of two tasks with small terms beside large rewards."""
    data = folder / name
    data.mkdir()
    shared = {
        "sft": None,
        "grpo__merge": {"kind": "cagrad"},
        "grpo__entropy": {"coef": 0.001},
        "grpo__kl": {"coef": 0.002},
        "grpo__steps": 1,
        "grpo__audit": {"first": 2},
        "guard__policy": "off",
        "eval__final_items": 1,
        "checkpoint": {"every": 0, "best": False},
    }
    return train(recipe(data, **{**shared, **changes}), out=data / "run")


@contextlib.contextmanager
def lost(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    """Lose the sign of a term between the term and its backward pass."""
    real, other = merging.scalar_loss, {"maximize": "minimize", "minimize": "maximize"}

    def loss(terms: Sequence[Term]) -> torch.Tensor:
        return real([replace(t, sense=other[t.sense]) if t.name == name else t for t in terms])  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(merging, "scalar_loss", loss)
        yield


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=by_night) for seed in (1, 2))])
def test_a_sound_run_in_half_precision_is_not_stopped(tmp_path: Path, dtype: str, seed: int) -> None:
    made = run(tmp_path, model__dtype=dtype, seed=seed)
    assert made.outcome == "done"
    assert events(made.folder) == []
    (row,) = steps(made.folder, "grpo")
    assert row["audit/unjudged"] > 0


@pytest.mark.parametrize("term", ["entropy", "kl", "policy"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sign_lost_on_the_way_is_named_at_the_first_update(
    term: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lost(monkeypatch, term), pytest.raises(SignError, match=f"term '{term}/"):
        run(tmp_path, model__dtype=dtype, grpo__audit__first=1)


@pytest.mark.slow
def test_the_audit_changes_no_bit_of_a_run_in_half_precision(tmp_path: Path) -> None:
    lora = {"model__dtype": "bfloat16", "model__lora": {"r": 2}, "grpo__epochs": 2}
    for changes in ({"model__dtype": "bfloat16"}, lora):
        name = "lora" if changes is lora else "whole"
        on = run(tmp_path, f"{name}-on", **changes)
        off = run(tmp_path, f"{name}-off", **changes, grpo__audit={"first": 0})
        assert same_weights(on.model, off.model)
        rows = [steps(made.folder, "grpo")[0] for made in (on, off)]
        assert {k: v for k, v in rows[0].items() if not k.startswith("audit/")} == rows[1]


def test_without_float32_hidden_signs_are_told_and_nothing_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signs, "why_not_exact", lambda _policy: "the frozen weights take 28.0 GiB")
    made = run(tmp_path, model__dtype="bfloat16")
    assert made.outcome == "done"
    told = [event for event in events(made.folder) if event["code"] == "term-sign-unjudged"]
    assert told
    assert told[0]["severity"] == "info"
    assert "entropy/one" in told[0]["message"]
    assert "cannot be judged at this precision" in told[0]["message"]
    assert "28.0 GiB" in told[0]["message"]


def test_a_pass_that_does_not_fit_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(signs, "exact_policy", full)
    made = run(tmp_path, model__dtype="bfloat16")
    assert made.outcome == "done"
    assert "does not fit" in events(made.folder)[0]["message"]


def test_a_wrong_sign_is_an_event_where_the_recipe_only_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lost(monkeypatch, "entropy"):
        made = run(tmp_path, model__dtype="bfloat16", grpo__audit={"first": 1, "on_error": "warn"})
    assert {(event["code"], event["severity"]) for event in events(made.folder)} == {("term-sign", "critical")}
