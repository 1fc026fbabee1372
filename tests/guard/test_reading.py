"""What the guard does about a policy that answers everything alike."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from levelhead.guard import LiveGuard
from levelhead.recipe.guard import Guard as Bounds
from levelhead.records import Decision, StepRecord

TASK = "faithfulness"


def row(
    share: float, entropy: float, told: float, reward: float, perfect: float | None = 0.3, valid: float = 1.0
) -> dict[str, float]:
    values = {
        f"answers/top_share/{TASK}": share,
        f"answers/entropy/{TASK}": entropy,
        f"answers/information/{TASK}": told,
        f"reward/{TASK}": reward,
        f"validity/{TASK}": valid,
        "reward": reward,
        "validity": valid,
        "entropy": 0.5,
        "kl": 0.02,
        "grad_norm": 0.5,
        "frac_reward_zero_std": 0.2,
    }
    return values | ({} if perfect is None else {f"answers/perfect_share/{TASK}": perfect})


def reads(i: int, reward: float = -0.3) -> dict[str, float]:
    return row(0.25 + 0.05 * (i % 2), 2.0, 1.2 + 0.1 * (i % 3), reward + 0.02 * (i % 4))


def alike(i: int, reward: float = -0.1) -> dict[str, float]:
    return row(1.0, 0.05, 0.01 * (i % 2), reward + 0.01 * (i % 4))


def shown(guard: LiveGuard, rows: Sequence[dict[str, float]], start: int = 1) -> list[Decision]:
    return [d for i, values in enumerate(rows, start) for d in guard.after_update(StepRecord(i, "grpo", values))]


def acted(decisions: Sequence[Decision]) -> list[Decision]:
    return [d for d in decisions if d.event.code == "constant-answer" and d.kind in ("rollback", "stop")]


def collapsing() -> list[dict[str, float]]:
    """The reward rises all the while: one answer pays more than reading does."""
    way = [row(0.3 + 0.07 * i, 2.0 - 0.19 * i, 1.2 - 0.12 * i, -0.3 + 0.02 * i) for i in range(10)]
    return [*(reads(i) for i in range(16)), *way, *(alike(i) for i in range(18))]


def test_one_answer_to_everything_returns_to_weights_whose_answers_told_of_the_prompt() -> None:
    guard = LiveGuard(Bounds())
    (back,) = acted(shown(guard, collapsing()))
    assert (back.kind, back.event.severity) == ("rollback", "critical")
    assert back.event.evidence["task"] == TASK
    assert back.event.evidence["to_step"] <= 22  # before half of what answers told was lost
    assert back.event.evidence["to_step"] >= 8
    assert "100% of the prompts of faithfulness get the same answer" in back.event.message
    assert guard.overrides.entropy_bonus > 0
    assert guard.overrides.kl == 2.0
    assert guard.overrides.learning_rate == 0.5


def test_what_one_answer_earned_is_no_level_to_be_held_against() -> None:
    guard = LiveGuard(Bounds())
    rows = [*(reads(i, 0.3) for i in range(16)), *(alike(i, 0.9) for i in range(15))]
    said = shown(guard, [*rows, *(reads(i, 0.3) for i in range(30))])
    assert [d.kind for d in said if d.kind in ("rollback", "stop")] == ["rollback"]


def test_after_its_returns_the_run_stops_with_the_reason() -> None:
    guard = LiveGuard(Bounds(max_rollbacks=1))
    said = acted(shown(guard, [*collapsing(), *collapsing()]))[:3]
    assert [d.kind for d in said] == ["rollback", "rollback", "stop"]
    assert "constant-answer" in said[-1].event.message
    assert said[-1].event.evidence["diagnosis"] == "constant-answer"


def test_a_policy_that_never_answered_otherwise_is_stopped_only_after_its_patience() -> None:
    guard = LiveGuard(Bounds(patience=40))
    assert not acted(shown(guard, [alike(i) for i in range(38)]))
    (end,) = acted(shown(guard, [alike(i) for i in range(10)], 39))
    assert end.kind == "stop"


def test_a_reward_that_still_rises_is_left_to_rise() -> None:
    rows = [reads(i) for i in range(16)] + [alike(i, -0.3 + 0.02 * i) for i in range(20)]
    assert not acted(shown(LiveGuard(Bounds()), rows))


@pytest.mark.parametrize(
    "values",
    [
        row(1.0, 0.05, 0.0, 0.9, perfect=1.0),  # the same answer is right everywhere
        row(1.0, 0.05, 0.0, 0.97, perfect=None),  # nobody knows the right ones, and the reward is at its top
        row(1.0, 1.8, 0.0, 0.4, perfect=0.4),  # one wide distribution for every prompt: it has not settled
        row(0.6, 0.5, 0.4, 0.4, perfect=0.5),  # labels
        row(1.0, 0.0, 0.0, 0.0, valid=0.0),  # nothing parses: another finding's business
    ],
)
def test_what_only_looks_alike_is_left_alone(values: dict[str, float]) -> None:
    measured = f"answers/perfect_share/{TASK}" in values
    rows = [{k: v for k, v in reads(i).items() if measured or "perfect" not in k} for i in range(16)]
    rows += [values | {"reward": 0.4, "validity": 1.0, f"reward/{TASK}": values[f"reward/{TASK}"]} for _ in range(80)]
    said = shown(LiveGuard(Bounds()), rows)
    assert not [d for d in said if d.event.code == "constant-answer"]


def test_a_resumed_guard_goes_on_as_it_would_have() -> None:
    rows = collapsing()
    whole, first, second = LiveGuard(Bounds()), LiveGuard(Bounds()), LiveGuard(Bounds())
    expected = shown(whole, rows)
    said = shown(first, rows[:30])
    for i, values in enumerate(rows[:30], 1):
        second.recall(StepRecord(i, "grpo", values))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    said += shown(second, rows[30:], 31)
    assert [(d.event.step, d.kind, d.event.message) for d in said] == [
        (d.event.step, d.kind, d.event.message) for d in expected
    ]


def test_looking_on_it_says_what_it_would_have_done() -> None:
    said = shown(LiveGuard(Bounds(policy="observe")), collapsing())
    told = [d for d in said if d.event.code == "constant-answer"]
    assert told
    assert {d.kind for d in told} == {"warn"}
    assert "rollback" in {d.event.evidence.get("would") for d in told}
