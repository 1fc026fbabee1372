"""Controllers hold what they promise: bounds, direction, convergence, and a state that can be saved."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.objective import controllers
from levelhead.objective.controllers import Band, ControllerState, EntropyTarget, Fixed, Lagrangian

ALL = [
    Fixed(0.1),
    Band(0.1, low=0.01, high=0.1, coef_max=1.0),
    Lagrangian(0.1, target=0.05, coef_max=1.0),
    EntropyTarget(target=0.5, coef_max=0.05),
]


def run(controller, measurements):
    state, coefs = controller.begin(), []
    for measured in measurements:
        state = controller.step(state, measured)
        coefs.append(state.coef)
    return coefs


def test_fixed_never_moves():
    assert run(Fixed(0.3), [0.0, 1.0, 100.0]) == [0.3] * 3


def test_band_multiplies_above_divides_below_and_rests_inside():
    band = Band(1.0, low=0.1, high=0.2, factor=2.0)
    assert run(band, [0.3, 0.15, 0.2, 0.1, 0.05, 0.05]) == [2.0, 2.0, 2.0, 2.0, 1.0, 0.5]


def test_lagrangian_follows_dual_ascent():
    assert run(Lagrangian(0.1, target=0.5, eta=0.2), [1.0, 0.5, 0.0]) == pytest.approx([0.2, 0.2, 0.1])


def test_lagrangian_stops_at_its_lowest_coefficient():
    assert run(Lagrangian(0.1, target=1.0, eta=1.0, coef_min=0.05), [0.0, 0.0]) == [0.05, 0.05]


def test_lagrangian_settles_where_the_kl_is_at_its_target():
    """A policy whose KL is 0.4 / (1 + 10 beta) meets the target 0.1 at beta = 0.3."""
    controller = Lagrangian(0.0, target=0.1, eta=0.2)
    state = controller.begin()
    for _ in range(500):
        state = controller.step(state, 0.4 / (1 + 10 * state.coef))
    assert state.coef == pytest.approx(0.3, abs=1e-3)


def test_entropy_bonus_grows_below_the_target_and_is_off_above():
    controller = EntropyTarget(target=0.5, coef=0.01, delta=0.002)
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
    state = controller.begin()
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
        controller.step(controller.begin(), bad)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("pid", {}, "unknown controller 'pid'; known: fixed, band, lagrangian, entropy_target"),
        ("fixed", {}, "missing 1 required positional argument: 'coef'"),
        ("fixed", {"coef": -1.0}, "coef must be finite and 0 or more"),
        ("fixed", {"coef": math.nan}, "coef must be finite"),
        ("band", {"coef": 0.0, "low": 0.1, "high": 0.2}, "0 < coef_min <= coef"),
        ("band", {"coef": 0.1, "low": 0.2, "high": 0.2}, "low < high"),
        ("band", {"coef": 0.1, "low": 0.1, "high": 0.2, "factor": 1.0}, "factor must be above 1"),
        ("lagrangian", {"coef": 0.1, "target": -1.0}, "target must be finite"),
        ("lagrangian", {"coef": 0.1, "target": 1.0, "eta": 0.0}, "eta must be above 0"),
        ("lagrangian", {"coef": 20.0, "target": 1.0}, "coef <= coef_max"),
        ("entropy_target", {"target": 0.1, "delta": 0.0}, "delta must be above 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        controllers.make(kind, **options)


def test_controllers_are_made_by_name():
    assert controllers.make("lagrangian", coef=0.1, target=0.2) == Lagrangian(0.1, 0.2)
