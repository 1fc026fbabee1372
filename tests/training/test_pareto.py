"""Fronts, hypervolumes and knees: by hand, by a second way of counting, and as properties of any points."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.training.pareto import (
    Point,
    bounded,
    chances,
    contributions,
    describe,
    dominates,
    front_of,
    hypervolume,
    knee_of,
)

GRID = st.integers(0, 5).map(float)


def clouds(dimensions: int, most: int = 8) -> st.SearchStrategy[list[tuple[float, ...]]]:
    return st.lists(st.tuples(*[GRID] * dimensions), min_size=1, max_size=most)


ANY = st.integers(1, 4).flatmap(clouds)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def points(*values: tuple[float, ...], error: float = 0.0) -> list[Point]:
    return [Point(i + 1, "grpo", value, (error,) * len(value)) for i, value in enumerate(values)]


def test_domination_is_no_worse_anywhere_and_better_somewhere() -> None:
    assert dominates((1, 2), (1, 1))
    assert not dominates((1, 1), (1, 1))
    assert not dominates((2, 0), (1, 1))
    assert not dominates((math.nan, 2), (0, 0))


@settings(deadline=None)
@given(ANY)
def test_nothing_on_the_front_is_dominated_and_everything_off_it_is_or_is_a_copy(
    cloud: list[tuple[float, ...]],
) -> None:
    front = front_of(cloud)
    assert front
    for i in front:
        assert not any(dominates(other, cloud[i]) for other in cloud)
    for i in set(range(len(cloud))) - set(front):
        assert any(dominates(cloud[j], cloud[i]) or (cloud[j] == cloud[i] and j < i) for j in front)


@settings(deadline=None)
@given(ANY, st.randoms(use_true_random=False))
def test_the_front_does_not_depend_on_the_order(cloud: list[tuple[float, ...]], random: object) -> None:
    shuffled = list(cloud)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert {cloud[i] for i in front_of(cloud)} == {shuffled[i] for i in front_of(shuffled)}


def test_a_point_that_is_not_finite_is_never_on_the_front() -> None:
    assert front_of([(math.nan, 9.0), (1.0, 1.0), (math.inf, 0.0)]) == [1]


def test_hypervolumes_by_hand() -> None:
    assert hypervolume([(3.0,), (5.0,)], (1.0,)) == 4.0
    # Three steps of a stair: 1 x 3 + 1 x 2 + 1 x 1.
    assert hypervolume([(1, 3), (2, 2), (3, 1)], (0, 0)) == 6.0
    assert hypervolume([(1, 3), (2, 2), (3, 1), (1, 1)], (0, 0)) == 6.0
    assert hypervolume([(1, 3), (2, 2), (3, 1)], (1, 1)) == 1.0
    assert hypervolume([(0, 5), (1, 1)], (0, 0)) == 1.0, "a point on the edge of the reference covers nothing"
    # Two boxes of 2 x 1 x 2 and 1 x 2 x 1 that share 1 x 1 x 1: 4 + 2 - 1.
    assert hypervolume([(2, 1, 2), (1, 2, 1)], (0, 0, 0)) == 5.0
    assert hypervolume([(2, 2, 2, 2)], (1, 1, 1, 0)) == 2.0
    assert hypervolume([], (0, 0)) == 0.0


@settings(deadline=None)
@given(ANY)
def test_the_hypervolume_is_the_count_of_unit_cells_below_some_point(cloud: list[tuple[float, ...]]) -> None:
    cells = itertools.product(range(5), repeat=len(cloud[0]))
    covered = sum(any(all(a > c for a, c in zip(point, cell, strict=True)) for point in cloud) for cell in cells)
    assert hypervolume(cloud, (0,) * len(cloud[0])) == covered


@settings(deadline=None)
@given(ANY)
def test_another_point_never_takes_hypervolume_away(cloud: list[tuple[float, ...]]) -> None:
    reference = (0,) * len(cloud[0])
    assert hypervolume(cloud, reference) >= hypervolume(cloud[:-1], reference)
    assert all(loss >= 0 for loss in contributions(cloud, reference))


def test_what_a_point_contributes_is_what_it_alone_covers() -> None:
    assert contributions([(1, 3), (2, 2), (3, 1)], (0, 0)) == [1.0, 1.0, 1.0]
    assert contributions([(1, 4), (2, 2), (2.5, 1)], (0, 0)) == [2.0, 1.0, 0.5]


def test_the_knee_bulges_most_beyond_the_line_between_the_ends() -> None:
    assert knee_of([(0, 10), (6, 8), (8, 3), (10, 0)]) == 1  # scaled sums: 1, 1.4, 1.1, 1
    assert knee_of([(0, 1000), (0.5, 400), (1, 0)]) == 0, "a hollow front has its knee at an end"
    assert knee_of([(0, 1), (1, 0)]) == 0
    assert knee_of([(2, 2)]) == 0
    assert knee_of([]) is None
    # Three objectives, ends at the unit vectors: the plane is x + y + z = 1.
    assert knee_of([(1, 0, 0), (0, 1, 0), (0, 0, 1), (0.5, 0.5, 0.4), (0.6, 0.3, 0.1)]) == 3


@settings(deadline=None)
@given(st.lists(st.tuples(GRID, GRID), min_size=1, max_size=10), st.floats(0.01, 100), st.floats(-5, 5))
def test_the_knee_does_not_depend_on_the_units(cloud: list[tuple[float, float]], scale: float, shift: float) -> None:
    front = [cloud[i] for i in front_of(cloud)]
    assert knee_of(front) == knee_of([(x * scale + shift, y) for x, y in front])


@settings(deadline=None)
@given(ANY, st.integers(1, 5))
def test_a_bounded_front_is_a_part_of_it_with_the_knee(cloud: list[tuple[float, ...]], limit: int) -> None:
    front = [cloud[i] for i in front_of(cloud)]
    selected = bounded(front, (-1.0,) * len(front[0]), limit)
    assert len(selected) == min(limit, len(front))
    assert selected == sorted(selected)
    assert knee_of(front) in selected


def test_a_bounded_front_gives_up_what_covers_least() -> None:
    front = [(0, 10), (1, 9.9), (6, 8), (10, 0)]
    assert bounded(front, (-1, -1), 3) == [0, 2, 3] or bounded(front, (-1, -1), 3) == [1, 2, 3]
    assert 2 in bounded(front, (-1, -1), 1)


def test_without_errors_the_chance_is_one_on_the_front_and_zero_off_it() -> None:
    odds, error = chances(points((1, 3), (2, 2), (1, 1), (1, 3)), (0, 0), rng())
    assert odds == [1.0, 1.0, 0.0, 0.0]
    assert error == 0.0


def test_errors_make_the_front_uncertain() -> None:
    close = points((1.0, 1.0), (1.01, 1.01), error=0.1)
    odds, error = chances(close, (0, 0), rng())
    assert 0.5 < odds[0] < odds[1] < 1.0
    assert error is not None
    assert 0.05 < error < 0.3
    far, _ = chances(points((1.0, 1.0), (9.0, 9.0), error=0.1), (0, 0), rng())
    assert far == [0.0, 1.0]


def test_the_error_of_a_single_points_hypervolume_is_that_of_a_product() -> None:
    """x y with x = 2 +- 0.1 and y = 3 +- 0.1: sqrt((3 * 0.1)^2 + (2 * 0.1)^2) = 0.36."""
    _, error = chances(points((2.0, 3.0), error=0.1), (0, 0), rng())
    assert error == pytest.approx(0.36, rel=0.15)


def test_the_front_of_a_conflicting_pair_by_hand() -> None:
    """Six of the evaluations of bench/merging.py's pair ``trade``, rounded, worked out on paper.

    Hypervolume, from the right: 0.66 * 0.47 + 0.60 * (0.72 - 0.47) + 0.54 * (0.82 - 0.72) + 0.48 * (0.92 - 0.82).
    Knee: scaled by the ranges 0.18 and 0.45 the sums are 1, 12/18 + 25/45 = 1.222, 6/18 + 35/45 = 1.111 and 1.
    Error: each edge of the stair times the error of the point that it moves with, their squares added.
    """
    values = [(0.66, 0.47), (0.60, 0.72), (0.54, 0.82), (0.48, 0.92), (0.45, 0.91), (0.48, 0.89)]
    errors = [(0.034, 0.035), (0.030, 0.019), (0.029, 0.008), (0.015, 0.001), (0.020, 0.002), (0.021, 0.005)]
    points = [Point(i, "grpo", v, e) for i, (v, e) in enumerate(zip(values, errors, strict=True))]
    page = describe(["complete", "brief"], (0, 0), points, rng())
    assert [row["front"] for row in page["points"]] == [True] * 4 + [False] * 2
    assert page["hypervolume"] == pytest.approx(0.3102 + 0.15 + 0.054 + 0.048)
    assert page["knee"] == 1
    heights, widths = (0.47, 0.25, 0.10, 0.10), (0.06, 0.06, 0.06, 0.48)
    parts = [(h * e[0]) ** 2 + (w * e[1]) ** 2 for h, w, e in zip(heights, widths, errors, strict=False)]
    assert page["hypervolume_se"] == pytest.approx(sum(parts) ** 0.5, rel=0.15)


def test_the_document_of_a_front_names_every_point_and_its_place() -> None:
    before = Point(0, "start", (0.5, 0.5), (0.0, 0.0))
    page = describe(["a", "b"], (0, 0), [before, *points((1, 3), (2, 2), (1, 1))], rng(), {2: "checkpoints/front/x"})
    assert [row["front"] for row in page["points"]] == [False, True, True, False]
    assert (page["hypervolume"], page["hypervolume_se"], page["knee"]) == (5.0, 0.0, 1)
    assert page["points"][2]["weights"] == "checkpoints/front/x"
    assert "weights" not in page["points"][1]


def test_the_policy_before_training_is_the_knee_where_training_has_only_made_it_worse() -> None:
    page = describe(["a", "b"], (0, 0), [Point(0, "start", (3, 3), (0.0, 0.0)), *points((1, 3), (2, 2))], rng())
    assert [row["front"] for row in page["points"]] == [True, False, False]
    assert page["knee"] == 0


@settings(max_examples=20, deadline=None)
@given(ANY)
def test_a_point_survives_the_trip_through_json(cloud: list[tuple[float, ...]]) -> None:
    for point in points(*cloud):
        assert Point.from_json(point.to_json()) == point
