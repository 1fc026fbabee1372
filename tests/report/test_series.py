"""Curves: gaps stay gaps, spikes survive thinning, and smoothing neither shifts nor invents."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.report.series import MOST_POINTS, Series, compact, names_under, number, on_steps, series, smooth, thin

finite = st.floats(-1e6, 1e6)


def curve(values: list[float | None]) -> Series:
    return Series("x", list(range(1, len(values) + 1)), values)


def test_an_absent_metric_is_no_point_and_a_nan_is_a_gap() -> None:
    rows = [{"step": 1, "a": 1.0}, {"step": 2}, {"step": 3, "a": math.nan}, {"step": 4, "a": True}, {"step": 5, "a": 2}]
    found = series(rows, "a")
    assert found.steps == [1, 3, 5]
    assert found.values == [1.0, None, 2.0]
    assert found.broken_steps == [3]
    assert not series(rows, "b")


@settings(deadline=None, max_examples=50)
@given(st.lists(finite | st.none(), min_size=1, max_size=80))
def test_a_moving_mean_stays_within_the_curve(values: list[float | None]) -> None:
    mean = smooth(curve(values))
    assert mean.steps == list(range(1, len(values) + 1))
    known = [value for value in values if value is not None]
    for value in mean.finite:
        assert min(known) - 1e-3 <= value <= max(known) + 1e-3


def test_a_moving_mean_keeps_a_straight_line_straight_away_from_the_ends() -> None:
    line: list[float | None] = [2.0 * n for n in range(200)]
    assert smooth(curve(line)).values[10:-10] == pytest.approx(line[10:-10])


def test_a_moving_mean_is_the_mean_of_its_window_by_hand() -> None:
    values: list[float | None] = [0.0] * 30
    values[15] = 3.0
    mean = smooth(curve(values)).values
    assert mean[14:17] == pytest.approx([1.0, 1.0, 1.0])
    assert mean[13] == mean[17] == 0.0


def test_thinning_keeps_the_only_spike_and_the_only_dip() -> None:
    values: list[float | None] = [0.0] * 20_000
    values[7777], values[12_345] = 9.0, -9.0
    thinned = thin(curve(values))
    assert len(thinned.steps) <= MOST_POINTS
    assert (max(thinned.finite), min(thinned.finite)) == (9.0, -9.0)
    assert thinned.steps == sorted(thinned.steps)
    assert thin(curve([1.0, 2.0])).values == [1.0, 2.0]


def test_a_curve_on_other_steps_is_filled_where_it_has_no_value() -> None:
    assert on_steps(Series("x", [2, 4], [1.0, None]), [1, 2, 3, 4]).values == [0.0, 1.0, 0.0, 0.0]


def test_names_are_found_once_in_order_and_only_where_numeric() -> None:
    rows = [{"rewards/b/mean": 1, "rewards/a/mean": 2.0, "rewards/c/std": 1, "rewards/d/mean": "x"}] * 2
    assert names_under(rows, "rewards/", "/mean") == ["rewards/b/mean", "rewards/a/mean"]


@pytest.mark.parametrize("value", ["1", None, math.inf, math.nan, True, 10**400, [1]])
def test_what_is_no_finite_number_is_none(value: object) -> None:
    assert number(value) is None


def test_numbers_are_written_with_six_digits() -> None:
    assert compact(1 / 3) == 0.333333
    assert compact(math.inf) is None
