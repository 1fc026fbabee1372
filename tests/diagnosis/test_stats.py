from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.diagnosis import stats

finite = st.floats(-1e6, 1e6)


def test_median_of_even_and_odd_counts() -> None:
    assert stats.median([3, 1, 2]) == 2
    assert stats.median([4, 1, 3, 2]) == 2.5
    assert stats.median([]) == 0


def test_noise_is_blind_to_a_trend() -> None:
    rng = random.Random(0)
    flat = [rng.gauss(0, 1) for _ in range(400)]
    rising = [v + 0.05 * i for i, v in enumerate(flat)]
    assert stats.noise(flat) == pytest.approx(1.0, rel=0.15)
    assert stats.noise(rising) == pytest.approx(stats.noise(flat), rel=0.05)


def test_spread_falls_back_to_the_plain_deviation_when_most_values_are_equal() -> None:
    assert stats.spread([1, 1, 1, 1, 5]) > 0
    assert stats.spread([2, 2, 2]) == 0


def test_kendall_sees_a_trend_and_no_trend() -> None:
    rng = random.Random(1)
    assert stats.kendall_z([i + rng.gauss(0, 3) for i in range(60)]) > 5
    assert abs(stats.kendall_z([rng.gauss(0, 1) for _ in range(60)])) < 3
    assert stats.kendall_z([1, 1, 1, 1, 1]) == 0


def test_change_point_finds_the_step() -> None:
    rng = random.Random(2)
    values = [rng.gauss(0, 0.1) for _ in range(30)] + [rng.gauss(2, 0.1) for _ in range(20)]
    at, score = stats.change_point(values)
    assert at == 30
    assert score > 20


def test_ramp_runs_both_ways() -> None:
    assert [stats.ramp(x, 0, 2) for x in (-1, 0, 1, 2, 3)] == [0, 0, 0.5, 1, 1]
    assert [stats.ramp(x, 2, 0) for x in (-1, 0, 1, 2, 3)] == [1, 1, 0.5, 0, 0]


@settings(deadline=None, max_examples=100)
@given(st.lists(finite, max_size=60), st.integers(1, 20))
def test_smooth_stays_within_the_range_and_the_length(values: list[float], window: int) -> None:
    smooth = stats.smooth(values, window)
    assert len(smooth) == len(values)
    if values:
        slack = 1e-6 * max(1.0, max(map(abs, values)))
        assert min(values) - slack <= min(smooth) <= max(smooth) <= max(values) + slack


@settings(deadline=None, max_examples=100)
@given(st.lists(finite, max_size=60))
def test_everything_is_finite_for_finite_input(values: list[float]) -> None:
    figures = [stats.mean(values), stats.median(values), stats.spread(values), stats.noise(values)]
    figures += [stats.kendall_z(values), stats.quantile(values, 0.9), *stats.running_median(values, 5)]
    assert all(map(math.isfinite, figures))


def test_runs_of_flags() -> None:
    flags = [True, False, True, True, True, False, True]
    assert stats.longest_run(flags) == (2, 3)
    assert stats.tail_run(flags) == 1
    assert stats.longest_run([]) == (0, 0)


def test_a_gap_is_sure_only_beyond_the_noise() -> None:
    rng = random.Random(2)
    noisy = [rng.gauss(0, 1) for _ in range(60)]
    assert stats.surety(noisy, 0.3, 9) == 0
    assert stats.surety(noisy, 5.0, 9) == 1
    assert stats.surety([1.0, 9.0], 8.0, 1) == 1
    assert stats.surety([1.0] * 5 + [2.0] * 5, 1.0, 2) == 1
