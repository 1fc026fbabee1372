from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.diagnosis.history import History


def test_absent_readings_stay_absent() -> None:
    history = History()
    history.append(1, {"reward": 0.1})
    history.append(2, {"reward": 0.2, "kl": 0.01})
    assert history.series("kl").steps == [2]
    assert history.series("entropy").values == []
    assert "entropy" not in history


def test_parts_of_one_step_are_one_row() -> None:
    history = History()
    history.append(1, {"reward": 0.1})
    history.append(1, {"loss": 0.0})
    assert history.rows == 1


def test_nonfinite_readings_are_counted_where_they_stand() -> None:
    history = History()
    for step, value in enumerate([math.nan, 1.0, math.inf, 2.0, math.nan, math.nan], start=1):
        history.append(step, {"grad_norm": value})
    bad = history.series("grad_norm").bad
    assert (bad.count, bad.first, bad.last, bad.leading, bad.trailing) == (4, 1, 6, 1, 2)
    assert history.series("grad_norm").values == [1.0, 2.0]


def test_a_full_column_keeps_the_peaks_of_gradients_and_the_means_of_rewards() -> None:
    history = History(capacity=8)
    for step in range(64):
        history.append(step, {"grad_norm": 100.0 if step == 37 else 1.0, "reward": float(step % 2)})
    assert len(history.series("grad_norm")) <= 8
    assert max(history.series("grad_norm").values) == 100.0
    assert set(history.series("reward").values) == {0.5}


@settings(deadline=None, max_examples=60)
@given(st.integers(8, 40), st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=400))
def test_merging_bounds_memory_and_keeps_the_mean(capacity: int, values: list[float]) -> None:
    history = History(capacity=capacity)
    for step, value in enumerate(values):
        history.append(step, {"reward": value})
    series = history.series("reward")
    assert len(series) <= capacity
    assert series.steps == sorted(series.steps)
    assert series.steps[0] == 0
    assert min(values) - 1e-6 <= min(series.values)
    assert max(series.values) <= max(values) + 1e-6
    full = len(values) // series.stride
    assert sum(series.values[:full]) * series.stride == pytest.approx(sum(values[: full * series.stride]), abs=1e-3)


def test_a_capacity_that_cannot_hold_a_trend_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity"):
        History(capacity=2)
