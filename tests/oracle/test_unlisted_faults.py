"""Faults of the trainer that nobody listed, put into a run that is worked out once more: the oracle names each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from faults.unlisted import UNLISTED
from levelhead.api import train
from oracle.watched_run import watching
from small_run import recipe

QUICK: dict[str, Any] = {
    "sft__steps": 1,
    "grpo__steps": 2,
    "grpo__batch_size": 12,
    "grpo__audit": {"first": 1},
    "grpo__optimizer__max_grad_norm": 0.01,
    "eval": {"items": 1, "final_items": 1, "sampling": {"max_new_tokens": 2}, "constant": False},
    "log__rollouts_every": 0,
}
SEEN = {
    "groups-interleaved": "advantage",
    "deviation-leaves-one-out": "advantage",
    "reference-is-the-base-model": "kl-at-start",
    "reference-follows": "frozen-weights-moved",
    "evaluations-in-the-training-reward": "reward-metric",
    "schedule-counts-batches": "learning-rate",
    "clipped-after-each-microbatch": "audited-coefficient",
}
"""Name of a fault, and the code by which the oracle names it."""
SETTINGS: dict[str, dict[str, Any]] = {
    "reference-is-the-base-model": {"model__lora": {"r": 2}, "sft__steps": 6, "sft__optimizer__learning_rate": 0.03},
    "reference-follows": {"grpo__steps": 5},
    "schedule-counts-batches": {"grpo__optimizer__schedule": "linear"},
}
"""What else a fault needs to have an effect."""


@pytest.mark.parametrize("name", sorted(SEEN))
def test_the_oracle_names_a_fault_of_the_trainer(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)
    document = recipe(tmp_path, **{**QUICK, **SETTINGS.get(name, {})})
    with UNLISTED[name].change(), watching(document) as watched:
        train(document, out=tmp_path / "run")
    assert SEEN[name] in watched.codes
