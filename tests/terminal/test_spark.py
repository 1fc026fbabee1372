"""A spark line rises where the readings rise, fits its width, and leaves gaps where nothing was read."""

from __future__ import annotations

import math

import pytest

from levelhead.terminal.spark import BLOCKS, PLAIN, spark


def test_each_reading_is_a_block_as_high_as_it_lies_between_the_least_and_the_largest() -> None:
    assert spark([0, 1, 2, 3, 4, 5, 6, 7], 8) == BLOCKS
    assert spark([7, 0], 8) == BLOCKS[-1] + BLOCKS[0]
    assert spark([0, 1, 2, 3, 4, 5, 6, 7], 8, plain=True) == PLAIN
    assert PLAIN.isascii()


def test_more_readings_than_columns_are_averaged_in_parts_to_the_last() -> None:
    assert spark([0, 0, 1, 1, 4, 4], 3) == BLOCKS[0] + BLOCKS[2] + BLOCKS[-1]
    assert len(spark(list(range(1000)), 32)) == 32


@pytest.mark.parametrize("gap", [math.nan, math.inf, -math.inf])
def test_a_reading_that_is_not_finite_is_a_gap(gap: float) -> None:
    assert spark([0, gap, 7], 3) == BLOCKS[0] + " " + BLOCKS[-1]
    assert spark([gap, gap], 5) == "  "


def test_a_level_curve_lies_in_the_middle_and_none_is_empty() -> None:
    assert spark([0.5, 0.5], 5) == BLOCKS[4] * 2
    assert spark([], 5) == spark([1], 0) == ""
