"""What the guard decides, shown steps by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest

from levelhead.diagnosis.findings import CATALOGUE
from levelhead.guard import LiveGuard, make_guard
from levelhead.guard.remedy import LARGE_UPDATE
from levelhead.message import chinese
from levelhead.recipe.guard import Guard as Bounds
from levelhead.records import Change, Decision, Guard, StepRecord

HEALTHY = {"reward": 0.5, "validity": 1.0, "entropy": 1.0, "kl": 0.02, "grad_norm": 0.5, "frac_reward_zero_std": 0.2}


def change(kl: float, scale: float = 1.0, *, later: bool = False, drift: tuple[float, float] | None = None) -> Change:
    return Change(scale, kl, 3 * kl, (1.0, 0.9), later, drift or (0.0, kl))


def shown(guard: LiveGuard, rows: Sequence[dict[str, float]], start: int = 1) -> list[Decision]:
    return [d for i, row in enumerate(rows, start) for d in guard.after_update(StepRecord(i, "grpo", row))]


def steady(n: int) -> list[dict[str, float]]:
    return [HEALTHY | {"reward": 0.5 + 0.02 * (i % 3), "grad_norm": 0.5 + 0.01 * (i % 5)} for i in range(n)]


def lost(n: int) -> list[dict[str, float]]:
    return [HEALTHY | {"reward": 0.0, "validity": 0.0, "entropy": 0.01, "frac_reward_zero_std": 1.0} for _ in range(n)]


def kinds(decisions: Sequence[Decision]) -> list[str]:
    return [decision.kind for decision in decisions]


def test_off_is_no_guard_at_all() -> None:
    assert make_guard(Bounds(policy="off")) is None
    assert isinstance(make_guard(Bounds()), Guard)


def test_an_update_within_bounds_stands() -> None:
    assert LiveGuard(Bounds()).judge(1, [change(0.049)]) is None


def test_a_long_update_is_shortened_by_the_root_of_what_is_too_much() -> None:
    decision = LiveGuard(Bounds(max_kl=0.05)).judge(7, [change(0.2)])
    assert decision is not None
    assert decision.kind == "shrink"
    assert decision.params["scale"] == pytest.approx(0.9 * 0.5)
    assert decision.event.step == 7
    assert decision.event.evidence["kl"] == 0.2
    assert decision.event.code == LARGE_UPDATE


def test_updates_that_together_lead_too_far_are_cut_where_the_batch_ends() -> None:
    guard = LiveGuard(Bounds(max_kl=0.05, max_batch_kl=0.09))
    trials = [change(0.04, later=True, drift=(0.04, 0.16))]
    decision = guard.judge(3, trials)
    assert decision is not None
    # From 0.2 to 0.4 on the scale of ways, of which 0.3 is allowed.
    assert decision.params == {"scale": pytest.approx(0.9 * 0.5), "spent": True}
    assert (decision.event.evidence["drift"], decision.event.evidence["max_batch_kl"]) == (0.16, 0.09)
    assert "the rest of the batch is left out" in decision.event.message
    assert guard.judge(3, [*trials, change(0.01, 0.45, later=True, drift=(0.04, 0.088))]) is None


def test_the_tighter_of_both_bounds_decides() -> None:
    guard = LiveGuard(Bounds(max_kl=0.05, max_batch_kl=0.09))
    decision = guard.judge(3, [change(0.8, later=True, drift=(0.04, 0.16))])
    assert decision is not None
    assert decision.params == {"scale": pytest.approx(0.9 * 0.25), "spent": True}
    alone = guard.judge(3, [change(0.2, later=True, drift=(0.04, 0.05))])
    assert alone is not None
    assert alone.params == {"scale": pytest.approx(0.9 * 0.5), "spent": False}


def test_an_update_that_leads_back_stands_however_far_the_batch_has_led() -> None:
    assert LiveGuard(Bounds()).judge(3, [change(0.04, later=True, drift=(0.5, 0.4))]) is None


def test_an_update_beyond_the_batchs_bound_before_it_began_is_undone() -> None:
    guard, trials = LiveGuard(Bounds()), [change(0.01, later=True, drift=(0.5, 0.6))]
    while decision := guard.judge(3, trials):
        scale = decision.params["scale"]
        trials.append(change(0.01 * scale, scale, later=True, drift=(0.5, 0.5 + 0.1 * scale)))
    assert trials[-1].scale == 0


def test_a_batch_may_lead_twice_as_far_as_one_update_unless_the_recipe_says_how_far() -> None:
    assert Bounds(max_kl=0.03).batch_kl == pytest.approx(0.06)
    assert Bounds(max_kl=0.03, max_batch_kl=0.5).batch_kl == 0.5


def test_an_update_that_cannot_be_shortened_is_undone() -> None:
    guard, trials = LiveGuard(Bounds()), [change(math.inf)]
    for _ in range(9):
        decision = guard.judge(1, trials)
        assert decision is not None
        if decision.params["scale"] == 0:
            break
        assert 0 < decision.params["scale"] < trials[-1].scale
        trials.append(change(math.inf, decision.params["scale"]))
    assert decision.params["scale"] == 0
    assert len(trials) == 5


def test_observing_asks_for_nothing_and_says_so_afterwards() -> None:
    guard = LiveGuard(Bounds(policy="observe"))
    assert guard.judge(1, [change(9.0)]) is None
    (said,) = shown(guard, steady(1))
    assert said.kind == said.event.action == "warn"
    assert said.event.evidence["would"] == "shrink"
    said = shown(guard, [*steady(20), *lost(4)], 2)
    assert set(kinds(said)) == {"warn"}
    assert {d.event.evidence.get("would") for d in said} >= {"rollback"}
    assert not guard.keeps


def test_a_guard_that_only_observes_never_says_that_it_did_something() -> None:
    guard = LiveGuard(Bounds(policy="observe", max_spike=3))
    guard.judge(1, [change(9.0)])
    said = [*shown(guard, steady(20)), *shown(guard, lost(4), 21)]
    for norm in [0.5] * 8 + [1e6]:
        said += guard.before_update(StepRecord(25, "grpo", {"grad_norm": norm}))
    assert {d.event.evidence["would"] for d in said if "would" in d.event.evidence} >= {"shrink", "rollback", "skip"}
    for event in (d.event for d in said if "would" in d.event.evidence):
        assert "nothing was done, for the guard observes only" in event.message
        assert "未采取措施" in chinese(event.message)
        assert not any(deed in event.message for deed in ("was skipped", "undone;", "stands;", "back to the weights"))


def test_a_steady_run_is_left_alone() -> None:
    assert shown(LiveGuard(Bounds()), steady(120)) == []


def test_a_collapse_returns_to_good_weights_with_a_lower_rate() -> None:
    guard = LiveGuard(Bounds(rollback_rate=0.5))
    assert shown(guard, steady(20)) == []
    said = shown(guard, lost(4), 21)
    (back,) = [d for d in said if d.kind == "rollback"]
    assert back.event.step <= 24
    assert back.event.code in CATALOGUE
    assert back.event.evidence["to_step"] <= 20
    assert back.event.evidence["best"] > 0.9
    assert guard.overrides.learning_rate == 0.5
    assert guard.overrides.entropy_bonus > 0


def test_an_entropy_that_has_grown_lowers_its_bonus() -> None:
    guard = LiveGuard(Bounds())
    shown(guard, steady(20))
    shown(guard, [HEALTHY | {"reward": 0.0, "validity": 0.0, "entropy": 6.0} for _ in range(4)], 21)
    assert guard.overrides.entropy < 1
    assert guard.overrides.entropy_bonus == 0


def test_after_the_last_return_the_run_stops_with_a_diagnosis_and_good_weights() -> None:
    guard, step, said = LiveGuard(Bounds(max_rollbacks=1)), 1, []
    for rows in (steady(20), lost(4), steady(8), lost(6)):
        said += shown(guard, rows, step)
        step += len(rows)
        if "stop" in kinds(said):
            break
    done = [d for d in said if d.kind in ("rollback", "stop")]
    assert kinds(done)[:3] == ["rollback", "rollback", "stop"]
    assert "diagnosis" in done[2].event.evidence
    assert done[2].event.evidence["diagnosis"] in CATALOGUE
    assert done[2].event.severity == "critical"


def test_no_gradient_for_good_stops_the_run() -> None:
    still = HEALTHY | {"reward": 0.0, "grad_norm": 0.0, "frac_reward_zero_std": 1.0, "validity": 0.0}
    said = shown(LiveGuard(Bounds(patience=30)), [still] * 40)
    assert "stop" in kinds(said)
    assert next(d.event.step for d in said if d.kind == "stop") == 30


def test_a_solved_task_is_not_stopped() -> None:
    climb = [HEALTHY | {"reward": min(1.0, 0.3 + 0.02 * i), "frac_reward_zero_std": 0.3} for i in range(50)]
    top = HEALTHY | {"reward": 1.0, "grad_norm": 0.0, "frac_reward_zero_std": 1.0}
    said = shown(LiveGuard(Bounds(patience=20)), [*climb, *[top] * 60])
    assert not {"stop", "rollback"} & set(kinds(said))


@pytest.mark.parametrize("worse", [1, 2, 4, 8])
def test_a_task_that_was_solved_before_the_first_step_is_no_deadlock(worse: int) -> None:
    solved = HEALTHY | {"reward": 1.0, "grad_norm": 0.0, "frac_reward_zero_std": 1.0, "dead_groups/all_solved": 1.0}
    once = solved | {"reward": 0.9, "grad_norm": 0.4, "frac_reward_zero_std": 0.83, "dead_groups/all_solved": 0.83}
    rows = [(once if i == worse else solved) | {"entropy": 0.05 / i} for i in range(1, 25)]
    guard = LiveGuard(Bounds())
    said = shown(guard, rows)
    assert not {"stop", "rollback", "resample", "adapt"} & set(kinds(said))
    assert "deadlock" not in {d.event.code for d in said}
    assert guard.overrides.temperature == 1.0


def test_groups_that_have_all_failed_are_still_a_deadlock() -> None:
    alive = [HEALTHY | {"reward": 0.2 + 0.02 * (i % 3)} for i in range(12)]
    failed = HEALTHY | {"reward": 0.0, "grad_norm": 0.0, "frac_reward_zero_std": 1.0, "entropy": 0.001}
    assert "deadlock" in {d.event.code for d in shown(LiveGuard(Bounds()), [*alive, *[failed] * 14])}


def test_rollouts_that_repeat_each_other_beyond_chance_are_told_once() -> None:
    numbers = {"sampling/repeats": 0.9, "sampling/repeats_expected": 0.02, "sampling/repeats_evidence": 80.0}
    said = [d.event for d in shown(LiveGuard(Bounds()), [HEALTHY | numbers] * 4)]
    (event,) = [event for event in said if event.code == "repeated-rollouts"]
    assert event.severity == "critical"
    assert "1 in 10^35" in event.message
    quiet = shown(LiveGuard(Bounds()), [HEALTHY | numbers | {"sampling/repeats_evidence": 12.0}] * 4)
    assert "repeated-rollouts" not in {d.event.code for d in quiet}


def test_frequent_shortening_takes_the_learning_rate_down_and_calm_gives_it_back() -> None:
    guard = LiveGuard(Bounds())
    for i in range(1, 5):
        guard.judge(i, [change(0.5), change(0.04, 0.3)])
        said = shown(guard, steady(1), i)
    (down,) = [d for d in said if d.kind == "adapt"]
    assert down.event.code == "lr-too-high"
    low = guard.overrides.learning_rate
    assert low == pytest.approx(0.3)
    for i in range(5, 200):
        guard.judge(i, [change(0.01)])
        shown(guard, steady(1), i)
    assert guard.overrides.learning_rate == 1.0


def test_the_learning_rate_has_a_floor() -> None:
    guard = LiveGuard(Bounds(min_rate=0.2))
    for i in range(1, 200):
        guard.judge(i, [change(0.5), change(0.04, 0.3)])
        shown(guard, steady(1), i)
    assert guard.overrides.learning_rate == 0.2


def test_overshoot_in_later_epochs_narrows_the_clip_range() -> None:
    guard = LiveGuard(Bounds())
    for i in range(1, 5):
        guard.judge(i, [change(0.5, later=True), change(0.04, 0.3, later=True)])
        shown(guard, steady(1), i)
    assert guard.overrides.clip == 0.75


def test_an_absurd_gradient_is_skipped() -> None:
    guard = LiveGuard(Bounds(max_spike=100))
    for i in range(1, 12):
        assert not guard.before_update(StepRecord(i, "grpo", {"grad_norm": 0.5}))
    (skip,) = guard.before_update(StepRecord(12, "grpo", {"grad_norm": 80.0}))
    assert skip.kind == "skip"
    assert skip.event.evidence == {"grad_norm": 80.0, "median": 0.5}
    assert not guard.before_update(StepRecord(13, "grpo", {"grad_norm": 20.0}))


def test_a_gradient_that_no_term_explains_is_told_once() -> None:
    guard = LiveGuard(Bounds())
    assert not guard.before_update(StepRecord(1, "grpo", {"grad_norm": 0.5, "audit/unexplained": 1e-3}))
    (told,) = guard.before_update(StepRecord(2, "grpo", {"grad_norm": 0.5, "audit/unexplained": 0.7}))
    assert (told.kind, told.event.severity, told.event.code) == ("warn", "critical", "gradient-unexplained")
    assert not guard.before_update(StepRecord(3, "grpo", {"grad_norm": 0.5, "audit/unexplained": 0.7}))


def test_groups_without_contrast_ask_for_others() -> None:
    dead = HEALTHY | {"reward": 0.0, "frac_reward_zero_std": 1.0, "grad_norm": 0.01, "validity": 0.5}
    said = shown(LiveGuard(Bounds()), [dead] * 30)
    assert "resample" in kinds(said)


@pytest.mark.parametrize("cut", [3, 22, 30])
def test_a_restored_guard_decides_as_the_old_one(cut: int) -> None:
    rows = [*steady(20), *lost(5), *steady(10), *lost(5)]
    whole, first = LiveGuard(Bounds()), LiveGuard(Bounds())
    for i, row in enumerate(rows[:cut], 1):
        for guard in (whole, first):
            guard.judge(i, [change(0.2), change(0.01, 0.4)])
            shown(guard, [row], i)
    second = LiveGuard(Bounds())
    for i, row in enumerate(rows[:cut], 1):
        second.recall(StepRecord(i, "grpo", row))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for i, row in enumerate(rows[cut:], cut + 1):
        for guard in (whole, second):
            guard.judge(i, [change(0.2), change(0.01, 0.4)])
        assert shown(whole, [row], i) == shown(second, [row], i)
        assert whole.keeps == second.keeps
    assert whole.state_dict() == second.state_dict()
