"""A fall is called one when it matters and is beyond chance, and not otherwise."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.guard.health import Level


def noisy(mean: float, n: int, spread: float, seed: int) -> list[float]:
    generator = random.Random(seed)
    return [mean + generator.gauss(0, spread) for _ in range(n)]


def first_fall(readings: list[float], window: int = 8) -> int | None:
    level = Level(window, 0.4)
    for index, value in enumerate(readings):
        level.add(value)
        if level.fall():
            return index
    return None


def test_the_loss_of_everything_is_seen_within_three_readings() -> None:
    readings = [*noisy(0.6, 20, 0.05, 0), *[0.0] * 10]
    assert first_fall(readings) in (20, 21, 22)


def test_a_loss_of_half_is_seen_within_a_window() -> None:
    fall = first_fall([*noisy(0.6, 30, 0.05, 1), *noisy(0.3, 12, 0.05, 2)])
    assert fall is not None
    assert 30 < fall <= 38


@pytest.mark.parametrize("seed", range(40))
def test_noise_alone_is_no_fall(seed: int) -> None:
    assert first_fall(noisy(0.5, 150, 0.2, seed)) is None


@pytest.mark.parametrize("seed", range(10))
def test_a_rising_reward_is_no_fall(seed: int) -> None:
    readings = [0.1 + 0.006 * i + noise for i, noise in enumerate(noisy(0.0, 120, 0.1, seed))]
    assert first_fall(readings) is None


def test_a_reward_that_was_never_high_cannot_fall() -> None:
    assert first_fall([0.0] * 50) is None


def test_negative_rewards_fall_from_their_own_floor() -> None:
    assert first_fall([*noisy(0.5, 20, 0.05, 3), *noisy(-1.0, 8, 0.05, 4)]) is not None


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=60), st.integers(1, 59))
@settings(deadline=None, max_examples=60)
def test_a_restored_level_goes_on_as_the_old_one(readings: list[float], cut: int) -> None:
    whole, first = Level(8, 0.4), Level(8, 0.4)
    for value in readings[:cut]:
        whole.add(value)
        first.add(value)
    second = Level(8, 0.4)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for value in readings[cut:]:
        whole.add(value)
        second.add(value)
    assert whole.state_dict() == second.state_dict()
    assert whole.fall() == second.fall()
