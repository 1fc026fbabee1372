"""The preflight foresees what the audit of the first updates will do in the run's own precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

import levelhead.objective.aggregation.merger as merging
import oracle.signs as trying
from levelhead.objective.terms import Term
from levelhead.records import Group, Prompt, Rollout, Score, Turn
from levelhead.training import signs
from oracle.result import Check
from oracle.run import preflight
from oracle.trial import differing
from preflight_setup import setup_of

SMALL = ("grpo.kl.coef=0.001", "grpo.entropy.coef=0.0005", "grpo.merge.kind=cagrad", "sft=null")


def precision(dtype: str, *settings: str) -> Check:
    report = preflight(setup_of(*SMALL, f"model.dtype={dtype}", *settings), families=["signs"])
    (only,) = [check for check in report.checks if check.name == "signs/precision"]
    return only


def test_signs_can_be_judged_in_half_precision_with_a_rehearsal() -> None:
    only = precision("bfloat16")
    assert only.status == "pass", only
    assert only.evidence["dtype"] == "bfloat16"


def test_terms_that_cannot_be_judged_are_foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs, "why_not_exact", lambda _policy: "no room")
    check = precision("bfloat16")
    assert check.status == "warn"
    assert "entropy/echo" in check.message
    assert "no room" in check.message


def test_a_run_that_its_audit_would_stop_is_foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = merging.scalar_loss

    def loss(terms: Sequence[Term]) -> torch.Tensor:
        return real([replace(t, sense="minimize") if t.name == "entropy" else t for t in terms])

    monkeypatch.setattr(merging, "scalar_loss", loss)
    check = precision("bfloat16", "grpo.entropy.coef=0.02")
    assert check.status == "fail"
    assert "the run would end" in check.message
    assert "entropy/" in check.message


def test_what_is_not_audited_is_not_foreseen() -> None:
    assert "no update" in precision("bfloat16", "grpo.audit.first=0").message
    assert "float32" in precision("float32").message


def rollout(*token_ids: int) -> Rollout:
    zeros = (0.0,) * len(token_ids)
    return Rollout("a", (Turn((1,), token_ids, zeros, zeros, "stop"),), Score(0.0))


def test_equal_answers_of_a_group_are_tried_once_and_half_of_one_where_all_are_equal() -> None:
    prompt = Prompt(id="a", task="a", messages=({"role": "user", "content": "?"},))
    mixed = Group(prompt, (rollout(4, 5, 6), rollout(7, 8), rollout(4, 5, 6)))
    assert [r.turns[0].completion_ids for r in differing(mixed)] == [(7, 8), (4, 5, 6)]
    alike = Group(prompt, (rollout(4, 5, 6, 7),) * 4)
    assert [r.turns[0].completion_ids for r in differing(alike)] == [(4, 5), (4, 5, 6, 7)]
    short = Group(prompt, (rollout(4),) * 2)
    assert differing(short) == list(short.rollouts)


def test_a_step_that_is_too_long_to_say_what_a_slope_is_is_made_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    far = tuple(1e3 * size for size in trying._SIZES)
    monkeypatch.setattr(trying, "_SIZES", far[:1])
    setup = setup_of(*SMALL)
    assert "signs/entropy" in [check.name for check in preflight(setup, families=["signs"]).failures]
    monkeypatch.setattr(trying, "_SIZES", (*far, *trying._SIZES[-1:], 1e-4))
    assert not preflight(setup, families=["signs"]).failures
