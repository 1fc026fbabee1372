"""What must hold at every update, and who says so when it does not."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence

import pytest

from levelhead.guard import LiveGuard
from levelhead.guard.invariants import AGREEMENTS, BEYOND, Invariants
from levelhead.recipe.guard import Guard as Bounds
from levelhead.records import StepRecord


def codes_after(guard: Invariants, rows: Sequence[Mapping[str, float]]) -> list[tuple[int, str]]:
    return [(i, violation.code) for i, row in enumerate(rows, 1) for violation in guard.after(row)]


def test_engines_that_differ_by_more_than_rounding_are_told_of_before_the_first_update() -> None:
    guard = LiveGuard(Bounds())
    assert not guard.before_update(StepRecord(1, "grpo", {"grad_norm": 0.5, BEYOND: 0.0}))
    (said,) = guard.before_update(StepRecord(2, "grpo", {"grad_norm": 0.5, BEYOND: 0.03}))
    assert (said.kind, said.event.code, said.event.severity) == ("warn", "logprob-mismatch", "critical")
    assert said.event.evidence[BEYOND] == 0.03
    assert not guard.before_update(StepRecord(3, "grpo", {"grad_norm": 0.5, BEYOND: 0.03}))


def test_a_reference_that_moves_along_is_told_of_once_the_policy_has_moved() -> None:
    watched = Invariants()
    assert not watched.before({"kl": 0.0})
    assert not watched.after({"guard/kl": 1e-3, "guard/scale": 1.0})
    assert [b.code for b in watched.before({"kl": 0.0})] == ["reference-not-frozen"]
    assert not watched.before({"kl": 1e-9})
    assert not watched.before({})


@pytest.mark.parametrize("values", [{"guard/kl": 1e-3, "guard/scale": 0.0}, {"guard/kl": 1e-9, "guard/scale": 1.0}, {}])
def test_a_policy_that_has_not_moved_may_be_its_reference(values: dict[str, float]) -> None:
    watched = Invariants()
    watched.after(values)
    assert not watched.before({"kl": 0.0})


def test_weights_from_before_may_be_the_reference_s_own() -> None:
    watched = Invariants()
    watched.after({"guard/kl": 1e-2, "guard/scale": 1.0})
    watched.restart()
    assert not watched.before({"kl": 0.0})


@pytest.mark.parametrize("name", AGREEMENTS)
def test_updates_against_the_rewards_are_told_of(name: str) -> None:
    rng = random.Random(0)
    codes = codes_after(Invariants(), [{name: rng.gauss(-0.5, 0.4)} for _ in range(20)])
    assert codes[0][1] == "update-against-reward"
    assert codes[0][0] >= 8


@pytest.mark.parametrize("name", AGREEMENTS)
def test_updates_that_follow_nothing_are_noise_and_no_breach(name: str) -> None:
    alarms = 0
    for seed in range(40):
        rng = random.Random(seed)
        alarms += bool(codes_after(Invariants(), [{name: rng.uniform(-1, 1)} for _ in range(200)]))
    assert alarms <= 1


def test_the_cause_is_named_rather_than_its_effect() -> None:
    rows = [dict.fromkeys(AGREEMENTS, -0.5 + 0.01 * i) for i in range(8)]
    watched = Invariants()
    violations = [violation for row in rows for violation in watched.after(row)]
    assert "advantages/agreement" in violations[0].evidence


def test_a_resumed_watch_remembers() -> None:
    watched, resumed = Invariants(), Invariants()
    for i in range(7):
        watched.after({"guard/alignment": -0.5 + 0.01 * i, "guard/kl": 1e-3, "guard/scale": 1.0})
    resumed.load_state_dict(json.loads(json.dumps(watched.state_dict())))
    assert resumed.state_dict() == watched.state_dict()
    assert resumed.after({"guard/alignment": -0.5})
    assert resumed.before({"kl": 0.0})


def test_a_checkpoint_of_before_these_checks_can_be_resumed() -> None:
    state = json.loads(json.dumps(LiveGuard(Bounds()).state_dict()))
    del state["invariants"]
    guard = LiveGuard(Bounds())
    guard.load_state_dict(state)
    assert guard.before_update(StepRecord(1, "grpo", {"grad_norm": 0.5, BEYOND: 0.03}))
