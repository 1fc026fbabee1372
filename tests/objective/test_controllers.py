"""Controllers hold what they promise: bounds, direction, convergence, and a state that can be saved."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.objective.controllers import (
    CONTROLLERS,
    Band,
    Controller,
    ControllerState,
    EntropyTarget,
    Fixed,
    Lagrangian,
)

ALL = [
    Fixed(),
    Band(low=0.01, high=0.1, coef_max=1.0),
    Lagrangian(target=0.05, coef_max=1.0),
    EntropyTarget(target=0.5, coef_max=0.05),
]


def run(controller, measurements, start=0.01):
    state, coefs = controller.begin(start), []
    for measured in measurements:
        state = controller.step(state, measured)
        coefs.append(state.coef)
    return coefs


def test_fixed_never_moves():
    assert run(Fixed(), [0.0, 1.0, 100.0], 0.3) == [0.3] * 3


def test_band_multiplies_above_divides_below_and_rests_inside():
    band = Band(low=0.1, high=0.2, factor=2.0)
    assert run(band, [0.3, 0.15, 0.2, 0.1, 0.05, 0.05], 1.0) == [2.0, 2.0, 2.0, 2.0, 1.0, 0.5]


def test_lagrangian_follows_dual_ascent():
    assert run(Lagrangian(target=0.5, eta=0.2), [1.0, 0.5, 0.0], 0.1) == pytest.approx([0.2, 0.2, 0.1])


def test_lagrangian_stops_at_its_lowest_coefficient():
    assert run(Lagrangian(target=1.0, eta=1.0, coef_min=0.05), [0.0, 0.0], 0.1) == [0.05, 0.05]


def test_lagrangian_settles_where_the_kl_is_at_its_target():
    """A policy whose KL is 0.4 / (1 + 10 beta) meets the target 0.1 at beta = 0.3."""
    controller = Lagrangian(target=0.1, eta=0.2)
    state = controller.begin(0.0)
    for _ in range(500):
        state = controller.step(state, 0.4 / (1 + 10 * state.coef))
    assert state.coef == pytest.approx(0.3, abs=1e-3)


def test_entropy_bonus_grows_below_the_target_and_is_off_above():
    controller = EntropyTarget(target=0.5, delta=0.002)
    assert run(controller, [0.4, 0.4, 0.6, 0.4, 0.5, 0.5]) == pytest.approx([0.01, 0.012, 0.0, 0.012, 0.014, 0.014])


def test_entropy_bonus_cannot_wind_up():
    assert max(run(EntropyTarget(target=0.5, coef_max=0.02), [0.0] * 100)) == 0.02


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1e6), max_size=40))
@pytest.mark.parametrize("controller", ALL, ids=lambda c: type(c).__name__)
def test_coefficients_stay_within_bounds(controller, measurements):
    assert all(0 <= coef <= 1.0 and math.isfinite(coef) for coef in run(controller, measurements))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 10), min_size=2, max_size=20), st.integers(0, 20))
@pytest.mark.parametrize("controller", ALL, ids=lambda c: type(c).__name__)
def test_a_saved_state_goes_on_as_if_never_stopped(controller, measurements, at):
    at = min(at, len(measurements))
    state = controller.begin(0.01)
    for measured in measurements[:at]:
        state = controller.step(state, measured)
    state = ControllerState.from_json(json.loads(json.dumps(state.to_json())))
    for measured in measurements[at:]:
        state = controller.step(state, measured)
    assert state.steps == len(measurements)
    assert state.coef == run(controller, measurements)[-1]


@pytest.mark.parametrize("controller", ALL, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_measurement_that_is_not_finite_is_refused(controller, bad):
    with pytest.raises(ValueError, match="must be finite"):
        controller.step(controller.begin(0.01), bad)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Fixed().begin(-1.0), "coef must be finite and 0 or more"),
        (lambda: Fixed().begin(math.nan), "coef must be finite"),
        (lambda: Band(low=0.1, high=0.2).begin(0.0), "controller band needs 0 < coef_min <= coef <= coef_max"),
        (lambda: Band(low=0.2, high=0.2), "low .* must be below high"),
        (lambda: Band(low=0.1, high=0.2, factor=1.0), "factor"),
        (lambda: Lagrangian(target=-1.0), "target"),
        (lambda: Lagrangian(target=1.0, eta=0.0), "eta"),
        (lambda: Lagrangian(target=1.0).begin(20.0), "coef <= coef_max"),
        (lambda: EntropyTarget(target=0.1, delta=0.0), "delta"),
    ],
)
def test_settings_that_do_not_fit_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_each_says_whose_coefficient_it_moves():
    both = {name for name, variant in CONTROLLERS.items() if variant.controls == {"kl", "entropy"}}
    kl = {name for name, variant in CONTROLLERS.items() if variant.controls == {"kl"}}
    assert (both, kl) == ({"fixed"}, {"band", "lagrangian"})
    assert [name for name, variant in CONTROLLERS.items() if not variant.moves] == ["fixed"]


class Returns(Controller):
    """A rule of somebody's own that gives what it is told to."""

    coef: float = 0.0
    memory: str | None = None

    def move(self, state, measured):
        return state.after(self.coef, {measured} if self.memory == "set" else self.memory)


class Bare(Controller):
    def move(self, state, measured):
        return 0.5


class Slow(Controller):
    """A rule of somebody's own, which remembers more than a number."""

    def first(self, coef):
        return ControllerState(coef, {"seen": []})

    def move(self, state, measured):
        seen = [*state.memory["seen"], measured][-2:]
        return state.after(sum(seen) / len(seen), {"seen": seen})


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Returns(coef=-1.0), "controller Returns: a coefficient must be finite and 0 or more, got -1.0"),
        (Returns(memory="set"), "controller Returns: its memory must be made of JSON values"),
        (Bare(), "controller Bare: it must return a ControllerState, got float"),
        (Controller(), r"Controller has no method move\(self, state, measured\)"),
    ],
)
def test_what_a_rule_of_ones_own_gives_is_checked(rule, message):
    with pytest.raises((ValueError, NotImplementedError), match=message):
        rule.step(rule.begin(0.1), 0.5)


def test_a_memory_may_be_more_than_a_number():
    state = Slow().begin(0.1)
    for measured in (1.0, 2.0, 4.0):
        state = ControllerState.from_json(json.loads(json.dumps(Slow().step(state, measured).to_json())))
    assert (state.coef, state.memory, state.steps) == (3.0, {"seen": [2.0, 4.0]}, 3)
