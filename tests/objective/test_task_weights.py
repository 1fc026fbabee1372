"""Weights over tasks: hand numbers, what each rule promises, and states that can be saved."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.objective.task_weights import (
    TASK_WEIGHTS,
    Constraint,
    FixedWeights,
    InverseLoss,
    TaskFacts,
    TaskWeights,
    WeightsState,
)

FACTS = TaskFacts({"one": 0.75, "two": 0.25}, {"one": 1.0, "two": 2.0})
ALL = [
    FixedWeights(),
    InverseLoss(),
    InverseLoss(power=-1, floor=0.1),
    Constraint(least={"two": 0.3}),
    Constraint(least={"one": 0.5, "two": 0.3}, kp=0.5, kd=2.0, smooth=0.5, top=3.0),
]


def run(rule: TaskWeights, *batches: dict[str, float]) -> list[WeightsState]:
    states = [rule.begin(FACTS)]
    for rewards in batches:
        states.append(rule.step(states[-1], FACTS, rewards))
    return states


def multipliers(rule: Constraint, *rewards: float) -> list[float]:
    return [rule.multipliers(state)["two"] for state in run(rule, *({"two": reward} for reward in rewards))]


def test_fixed_weights_never_move() -> None:
    assert [state.weights for state in run(FixedWeights(), {"one": 0.0}, {"two": 9.0})] == [dict(FACTS.shares)] * 3


def test_inverse_loss_weighs_by_what_is_left_of_the_most_reward() -> None:
    """Losses 1 - 0.5 = 0.5 and 2 - 1.75 = 0.25: 0.75 / 0.5 = 1.5 and 0.25 / 0.25 = 1, which are 0.6 and 0.4 of 2.5."""
    (_, state) = run(InverseLoss(), {"one": 0.5, "two": 1.75})
    assert dict(state.weights) == pytest.approx({"one": 0.6, "two": 0.4})


def test_the_loss_itself_weighs_with_power_minus_one() -> None:
    """0.75 * 0.5 = 0.375 and 0.25 * 0.25 = 0.0625 of 0.4375."""
    (_, state) = run(InverseLoss(power=-1), {"one": 0.5, "two": 1.75})
    assert dict(state.weights) == pytest.approx({"one": 6 / 7, "two": 1 / 7})


def test_inverse_loss_takes_running_means_and_stops_at_its_least_loss() -> None:
    """Means 0.5, then 0.8 * 0.5 + 0.2 * 1 = 0.6; a loss of 2 - 2.5 counts as 0.05: 0.75 / 0.4 and 0.25 / 0.05."""
    state = run(InverseLoss(), {"one": 0.5, "two": 2.5}, {"one": 1.0, "two": 2.5})[-1]
    assert state.memory == {"rewards": pytest.approx({"one": 0.6, "two": 2.5})}
    assert state.weights["two"] / state.weights["one"] == pytest.approx(5.0 / 1.875)


@pytest.mark.parametrize(("one", "two"), [(0.9, 0.4), (0.2, 1.9)])
def test_inverse_loss_is_the_gradient_of_the_mean_logarithm_of_the_losses(one: float, two: float) -> None:
    def logs(x: float, y: float) -> float:
        return sum(FACTS.shares[t] * math.log(FACTS.most[t] - r) for t, r in (("one", x), ("two", y)))

    (_, state) = run(InverseLoss(), {"one": one, "two": two})
    slopes = [(logs(one, two) - logs(one + 1e-6, two)) / 1e-6, (logs(one, two) - logs(one, two + 1e-6)) / 1e-6]
    assert state.weights["one"] / state.weights["two"] == pytest.approx(slopes[0] / slopes[1], rel=1e-4)


def test_a_multiplier_follows_dual_ascent_and_stops_at_zero_and_at_its_top() -> None:
    """0.1 (0.3 - 0.1) = 0.02, and 0.1 (0.3 - 0.5) takes it off again; then 100 lacks at once are the top."""
    assert multipliers(Constraint(least={"two": 0.3}), 0.1, 0.1, 0.5, 0.9, -100.0, -1000.0) == pytest.approx(
        [0.0, 0.02, 0.04, 0.02, 0.0, 10.0, 10.0]
    )


def test_the_weight_of_a_constrained_task_is_its_own_plus_the_multiplier_over_one_plus_it() -> None:
    """With lambda 0.5: (0.25 + 0.5) / 1.5 = 0.5 and 0.75 / 1.5 = 0.5."""
    (first, _) = run(Constraint(least={"two": 0.3}, start=0.5), {})
    assert dict(first.weights) == pytest.approx({"one": 0.5, "two": 0.5})
    both = Constraint(least={"one": 0.1, "two": 0.3}, start=1.0).begin(FACTS)
    assert dict(both.weights) == pytest.approx({"one": 1.75 / 3, "two": 1.25 / 3})


def test_proportional_and_derivative_parts_add_to_the_integral_and_a_rise_has_no_derivative() -> None:
    """Rewards 0.2, 0.1, 0.4 with bound 0.3 and gains 1, 0.5, 2.

    I: 0.1, 0.3, 0.2.  P: 0.05, 0.1, -0.05.  D: 0 (first), 2 * 0.1 = 0.2, 0 (it rose).
    """
    rule = Constraint(least={"two": 0.3}, eta=1.0, kp=0.5, kd=2.0)
    assert multipliers(rule, 0.2, 0.1, 0.4) == pytest.approx([0.0, 0.15, 0.6, 0.15])
    third = run(rule, {"two": 0.2}, {"two": 0.1})[-1]
    assert third.weights["two"] == pytest.approx((0.25 + 0.6) / 1.6), "weights are taken with the whole multiplier"


def test_a_constraint_looks_at_running_means_where_it_is_told_to() -> None:
    """Means 0.1 and 0.5 * 0.1 + 0.5 * 0.3 = 0.2: 0.1 (0.2 + 0.1)."""
    assert multipliers(Constraint(least={"two": 0.3}, smooth=0.5), 0.1, 0.3) == pytest.approx([0.0, 0.02, 0.03])


def test_a_batch_without_the_task_moves_nothing() -> None:
    rule = Constraint(least={"two": 0.3}, kp=1.0)
    first, second = run(rule, {"two": 0.1}, {"one": 0.0})[1:]
    assert (second.weights, second.memory) == (first.weights, first.memory)
    assert rule.step(second, FACTS, {"two": math.nan}).weights == first.weights


def test_a_constraint_settles_where_the_reward_is_at_its_bound() -> None:
    """A policy whose reward is the share of the task's weight meets the bound 0.4 where (0.25 + l) / (1 + l) = 0.4."""
    rule = Constraint(least={"two": 0.4}, eta=0.2)
    state = rule.begin(FACTS)
    for _ in range(400):
        state = rule.step(state, FACTS, {"one": 0.0, "two": state.weights["two"]})
    assert state.weights["two"] == pytest.approx(0.4, abs=1e-3)
    assert rule.multipliers(state)["two"] == pytest.approx(0.25, abs=1e-2)


@settings(deadline=None)
@given(
    st.sampled_from(ALL),
    st.lists(st.fixed_dictionaries({"one": st.floats(-10, 10), "two": st.floats(-10, 10)}), max_size=12),
)
def test_weights_are_positive_bounded_and_a_saved_state_goes_on_as_it_would_have(
    rule: TaskWeights, batches: list[dict[str, float]]
) -> None:
    states = run(rule, *batches)
    for state in states:
        assert set(state.weights) == {"one", "two"}
        assert all(0 < weight < 1 for weight in state.weights.values())
        assert sum(state.weights.values()) == pytest.approx(1.0)
        assert all(0 <= value <= getattr(rule, "top", 0) for value in rule.multipliers(state).values())
    again = WeightsState.from_json(json.loads(json.dumps(states[-1].to_json())))
    assert rule.step(again, FACTS, {"one": 0.1}) == rule.step(states[-1], FACTS, {"one": 0.1})


@pytest.mark.parametrize(
    ("rule", "facts", "said"),
    [
        (Constraint(least={"three": 0.3}), FACTS, "least: no task is called 'three'; there are one, two"),
        (Constraint(least={"one": 1.5}), FACTS, "least: 'one' gives no more than 1, which is below 1.5"),
        (Constraint(least={"one": 0.5}), TaskFacts({"one": 1.0}), "least: .* the recipe has a single task"),
        (InverseLoss(most={"three": 1.0}), FACTS, "most: no task is called 'three'"),
        (InverseLoss(), TaskFacts(FACTS.shares, {"one": 1.0}), "most: task 'two' declares no most reward"),
    ],
)
def test_settings_that_do_not_fit_the_tasks_are_refused(rule: TaskWeights, facts: TaskFacts, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rule.check(facts)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (None, "it must return a WeightsState, got NoneType"),
        (WeightsState({"one": 1.0}), "weights are needed for one, two, got one"),
        (WeightsState({"one": 1.0, "two": 0.0}), "the weight of 'two' must be finite and above 0, got 0.0"),
        (WeightsState({"one": 1.0, "two": math.inf}), "the weight of 'two' must be finite"),
        (WeightsState({"one": 1.0, "two": 1.0}, {1, 2}), "its memory must be made of JSON values"),
    ],
)
def test_a_rule_of_ones_own_that_gives_no_weights_is_told_so(made: Any, said: str) -> None:
    class Own(TaskWeights):
        def move(self, state, facts, rewards):
            return made

    with pytest.raises(ValueError, match=f"task weights Own: {said}"):
        run(Own(), {"one": 0.0})


def test_every_rule_is_registered_under_its_name() -> None:
    assert {type(rule) for rule in ALL} == set(TASK_WEIGHTS.values())
    assert list(TASK_WEIGHTS) == ["fixed", "inverse_loss", "constraint"]
