"""Weights of the task gradients: hand numbers, each method's defining property, and torchjd as a second opinion."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchjd import aggregation as torchjd
from torchjd.linalg import QuadprogProjector

from levelhead.objective.aggregation import AGGREGATORS, Aggregator, weights

D = torch.float64
NAMES = sorted(AGGREGATORS)
EXACT = [name for name in NAMES if name not in ("sum", "mean")]


class ByLength(Aggregator):
    """A rule of somebody's own: the longer a gradient, the less it weighs."""

    scale = "sum"

    def weights(self, gramian_mm, generator):
        return 1 / gramian_mm.diagonal() / (1 / gramian_mm.diagonal()).sum()


class Short(Aggregator):
    def weights(self, gramian_mm, generator):
        return gramian_mm.diagonal()[:2]


def jacobian(seed: int, m: int, *, size: int = 12, conflict: bool = False) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(m, size, generator=rng, dtype=D) * torch.rand(m, 1, generator=rng, dtype=D).mul(3).exp()
    if conflict:
        rows[1] = rows[1] * 0.3 - rows[0]
    return rows


def merge(name: str, rows: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    options = {"generator": torch.Generator().manual_seed(0), **options}
    computed = weights(name, rows @ rows.T, **options)
    return computed, computed @ rows


@pytest.mark.parametrize(
    ("name", "gramian", "options", "expected"),
    [
        ("sum", [[1.0, -0.5], [-0.5, 4.0]], {}, [1.0, 1.0]),
        ("mean", [[1.0, -0.5], [-0.5, 4.0]], {}, [0.5, 0.5]),
        ("pcgrad", [[1.0, -0.5], [-0.5, 4.0]], {}, [1.5, 1.125]),
        ("pcgrad", [[1.0, 0.5], [0.5, 4.0]], {}, [1.0, 1.0]),
        ("upgrad", [[1.0, -0.5], [-0.5, 4.0]], {}, [0.75, 0.5625]),
        ("mgda", [[1.0, 0.0], [0.0, 3.0]], {}, [0.75, 0.25]),
        ("mgda", [[1.0, 2.0], [2.0, 9.0]], {}, [1.0, 0.0]),
        ("aligned_mtl", [[1.0, 0.0], [0.0, 4.0]], {}, [0.5, 0.25]),
        # Orthogonal: G a = 1 / a has a_i = 1 / |g_i|, and the Frobenius norm of G is sqrt(1 + 256).
        ("nash_mtl", [[1.0, 0.0], [0.0, 16.0]], {}, [257**0.25, 257**0.25 / 4]),
        # Cosine -1/4: a_i = 1 / (|g_i| sqrt(1 - 1/4)), and the norm is sqrt(1 + 2 / 4 + 16).
        ("nash_mtl", [[1.0, -0.5], [-0.5, 4.0]], {}, [17.5**0.25 / 0.75**0.5, 17.5**0.25 / 0.75**0.5 / 2]),
        # Orthogonal and equally long: g_w is the mean, and d = (1 + c) g0.
        ("cagrad", [[1.0, 0.0], [0.0, 1.0]], {"c": 0.4}, [0.7, 0.7]),
        # On one line, 3 and -1: the worse-off task is all that matters, d = g0 - c = 0.6.
        ("cagrad", [[9.0, -3.0], [-3.0, 1.0]], {"c": 0.4}, [0.5, 0.9]),
    ],
)
def test_hand_numbers(name, gramian, options, expected):
    assert weights(name, torch.tensor(gramian, dtype=D), **options).tolist() == pytest.approx(expected, rel=1e-9)


@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([0.1, 0.4, 0.9]))
@settings(max_examples=40, deadline=None)
def test_closed_forms_of_two_tasks_equal_torchjd(seed, conflict, c):
    rows = jacobian(seed, 2, conflict=conflict)
    gramian = rows @ rows.T
    gramian = gramian / gramian.diagonal().max()
    oracles = {
        "cagrad": torchjd.CAGradWeighting(c=c, norm_eps=1e-12),
        "pcgrad": torchjd.PCGradWeighting(),
        "upgrad": torchjd.UPGradWeighting(projector=QuadprogProjector(norm_eps=1e-12, reg_eps=1e-12)),
        "mgda": torchjd.MGDAWeighting(epsilon=1e-6, max_iters=300),
        "aligned_mtl": torchjd.AlignedMTLWeighting(),
    }
    for name, oracle in oracles.items():
        theirs = oracle(gramian)
        torch.testing.assert_close(weights(name, gramian, c=c), theirs, rtol=2e-3, atol=2e-3)


@given(st.integers(0, 10_000), st.integers(2, 5), st.booleans(), st.sampled_from([0.2, 0.5, 0.9]))
@settings(max_examples=40, deadline=None)
def test_cagrad_stays_in_its_ball_and_is_the_best_there(seed, m, conflict, c):
    rows = jacobian(seed, m, conflict=conflict)
    _, d = merge("cagrad", rows, c=c)
    center = rows.mean(0)
    radius = c * center.norm()
    assert (d - center).norm() <= radius * (1 + 1e-6)
    worst = (rows @ d).min()
    rng = torch.Generator().manual_seed(seed)
    others = torch.randn(300, rows.shape[1], generator=rng, dtype=D)
    others = torch.cat([others, rows, d[None] + 0.1 * others])
    others = center + radius * others / others.norm(dim=1, keepdim=True)
    assert (rows @ others.T).min(0).values.max() <= worst + 1e-4 * rows.norm(dim=1).max() * center.norm()


@given(st.integers(0, 10_000), st.integers(2, 5), st.booleans())
@settings(max_examples=20, deadline=None)
def test_upgrad_harms_no_task_and_mgda_is_the_shortest_combination(seed, m, conflict):
    rows = jacobian(seed, m, conflict=conflict)
    scale = (rows @ rows.T).diagonal().max()
    _, d = merge("upgrad", rows)
    assert (rows @ d).min() >= -1e-6 * scale
    w, d = merge("mgda", rows)
    assert w.sum().item() == pytest.approx(1)
    assert w.min() >= -1e-12
    assert (rows @ d).min() >= d @ d - 1e-2 * scale


@given(st.integers(0, 10_000), st.booleans())
@settings(max_examples=30, deadline=None)
def test_pcgrad_of_two_tasks_harms_neither(seed, conflict):
    rows = jacobian(seed, 2, conflict=conflict)
    _, d = merge("pcgrad", rows)
    assert (rows @ d).min() >= -1e-9 * (rows @ rows.T).max()


@given(st.integers(0, 10_000), st.integers(2, 5), st.booleans())
@settings(max_examples=40, deadline=None)
def test_nash_mtl_gives_every_task_the_same_share_of_the_bargain_and_the_largest_product_of_gains(seed, m, conflict):
    rows = jacobian(seed, m, conflict=conflict)
    w, d = merge("nash_mtl", rows)
    gains = rows @ d
    norm = torch.linalg.matrix_norm(rows @ rows.T)
    torch.testing.assert_close(w * gains, norm.expand(m), rtol=1e-5, atol=0)
    assert float(d.norm()) == pytest.approx(float((m * norm).sqrt()), rel=1e-5)
    others = torch.randn(300, rows.shape[1], generator=torch.Generator().manual_seed(seed), dtype=D)
    others = torch.cat([d / d.norm() + 0.2 * others, rows])
    others = d.norm() * others / others.norm(dim=1, keepdim=True)
    products = torch.where((others @ rows.T > 0).all(1), (others @ rows.T).clamp(min=1e-300).log().sum(1), -math.inf)
    assert float(products.max()) <= float(gains.log().sum()) + 1e-6


def test_nash_mtl_does_not_care_for_the_unit_of_a_task():
    rows = jacobian(11, 3, conflict=True)
    other = rows * torch.tensor([[1.0], [7.0], [0.02]], dtype=D)
    one, two = merge("nash_mtl", rows)[1], merge("nash_mtl", other)[1]
    torch.testing.assert_close(one / one.norm(), two / two.norm(), rtol=1e-6, atol=1e-8)


def test_pcgrad_of_three_tasks_equals_torchjd_in_the_same_order():
    rows = jacobian(3, 4, conflict=True)
    torch.manual_seed(5)
    theirs = torchjd.PCGradWeighting()(rows @ rows.T)
    computed, _ = merge("pcgrad", rows, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(computed, theirs)


def test_aligned_mtl_equals_torchjd_for_many_tasks():
    rows = jacobian(4, 5)
    torch.testing.assert_close(merge("aligned_mtl", rows)[0], torchjd.AlignedMTLWeighting()(rows @ rows.T))


@pytest.mark.parametrize("name", NAMES)
def test_one_task_is_returned_as_it_is(name):
    assert weights(name, torch.tensor([[7.0]])).tolist() == [1.0]


@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_equal_gradients_show_the_scale_of_each_aggregator(name, m):
    row = torch.randn(6, generator=torch.Generator().manual_seed(0), dtype=D)
    _, d = merge(name, row.expand(m, 6), c=0.4)
    scale = {"sum": float(m), "mean": 1.0}[AGGREGATORS[name].scale] * (1.4 if name == "cagrad" else 1.0)
    torch.testing.assert_close(d, scale * row, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("m", [2, 3, 4])
def test_cagrad_becomes_the_mean_as_its_radius_vanishes(m):
    rows = jacobian(8, m, conflict=True)
    assert torch.equal(merge("cagrad", rows, c=0.0)[0], torch.full((m,), 1 / m, dtype=D))
    torch.testing.assert_close(
        merge("cagrad", rows, c=1e-6)[1], rows.mean(0), rtol=0, atol=2e-6 * float(rows.mean(0).norm())
    )


@pytest.mark.parametrize("name", EXACT)
def test_a_task_without_a_gradient_leaves_the_others_as_they_were(name):
    rows = jacobian(6, 3, conflict=True)
    rows[2] = 0
    with_dead, _ = merge(name, rows)
    without, _ = merge(name, rows[:2])
    share = 2 / 3 if AGGREGATORS[name].scale == "mean" else 1.0
    assert with_dead[2] == 0
    torch.testing.assert_close(with_dead[:2], without * share)
    alone, d = merge(name, torch.stack([rows[0], rows[2]]))
    assert alone.tolist() == [0.5 if AGGREGATORS[name].scale == "mean" else 1.0, 0.0]
    assert (d @ rows[0]) > 0


def test_torchjds_cagrad_gives_up_where_ours_follows_the_other_task():
    gramian = torch.diag(torch.tensor([1.0, 0.0]))
    assert torchjd.CAGradWeighting(c=0.4)(gramian).tolist() == [0.0, 0.0]
    assert weights("cagrad", gramian).tolist() == [0.5, 0.0]


def test_torchjd_takes_small_gradients_for_none_where_ours_does_not():
    rows = jacobian(2, 3, conflict=True) * 1e-4
    gramian = rows @ rows.T
    assert torchjd.CAGradWeighting(c=0.4)(gramian).abs().sum() == 0
    torch.testing.assert_close(weights("cagrad", gramian), weights("cagrad", gramian * 1e8), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_unit_of_the_gradients_does_not_matter(name):
    rows = jacobian(9, 3, conflict=True)
    small, _ = merge(name, rows * 1e-9)
    torch.testing.assert_close(small, merge(name, rows * 1e6)[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_opposite_gradients_of_equal_length_cancel_and_nothing_is_divided_by_zero(name):
    row = torch.ones(4, dtype=D)
    computed, d = merge(name, torch.stack([row, -row]))
    assert torch.isfinite(computed).all()
    torch.testing.assert_close(d, torch.zeros(4, dtype=D), atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_no_gradient_at_all_is_no_error(name):
    assert torch.isfinite(weights(name, torch.zeros(3, 3))).all()


@given(st.integers(0, 10_000), st.permutations(range(3)))
@settings(max_examples=12, deadline=None)
def test_the_order_of_the_tasks_does_not_matter(seed, order):
    rows = jacobian(seed, 3, conflict=True)
    for name in ("cagrad", "upgrad", "mgda", "aligned_mtl", "nash_mtl"):
        computed, _ = merge(name, rows)
        shuffled, _ = merge(name, rows[list(order)])
        torch.testing.assert_close(shuffled, computed[list(order)], rtol=1e-2, atol=1e-2)


def test_dtype_and_device_of_the_gramian_come_back():
    for dtype in (torch.float32, torch.bfloat16):
        assert weights("cagrad", torch.eye(2, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("cagrads", torch.eye(2)), {}, "unknown aggregator 'cagrads'"),
        (("cagrad", torch.eye(2)), {"c": 1.0}, "aggregator cagrad: c must be below 1, got 1.0"),
        (("cagrad", torch.eye(2)), {"radius": 1.0}, "no setting 'radius'; it takes c"),
        ((Short(), torch.eye(3)), {}, r"aggregator Short: weights need shape \(3,\), got \(2,\)"),
        ((Aggregator(), torch.eye(3)), {}, r"Aggregator has no method weights\(self, gramian_mm, generator\)"),
        (("cagrad", torch.ones(2, 3)), {}, "shape"),
        (("cagrad", torch.ones(0, 0)), {}, "shape"),
        (("cagrad", torch.tensor([[1.0, math.nan], [math.nan, 1.0]])), {}, "not finite"),
        (("cagrad", torch.tensor([[1.0, 0.5], [-0.5, 1.0]])), {}, "symmetric"),
        (("mgda", -torch.eye(2)), {}, "not negative"),
        (("pcgrad", torch.eye(3)), {}, "generator"),
    ],
)
def test_bad_input_raises_one_clear_line(arguments, options, message):
    with pytest.raises((ValueError, NotImplementedError), match=message):
        weights(*arguments, **options)


def test_an_aggregator_brings_its_settings_and_takes_changes():
    gramian = torch.tensor([[9.0, -3.0], [-3.0, 1.0]], dtype=D)
    small = weights(AGGREGATORS["cagrad"](c=0.1), gramian)
    assert small.tolist() == weights("cagrad", gramian, c=0.1).tolist()
    assert weights(AGGREGATORS["cagrad"](c=0.1), gramian, c=0.4).tolist() == pytest.approx([0.5, 0.9])
    assert weights(ByLength(), gramian).tolist() == pytest.approx([0.1, 0.9])
    assert weights(ByLength(), torch.diag(torch.tensor([9.0, 0.0, 1.0]))).tolist() == pytest.approx([0.1, 0.0, 0.9])
