"""KL estimates: values, gradients, and what happens far from the reference."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.objective import kl

D = torch.float64


def distributions(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(2, 5, generator=rng, dtype=D).unbind()


@pytest.mark.parametrize(
    ("name", "gap", "value"),
    [("k1", 0.5, 0.5), ("k2", 0.5, 0.125), ("k3", 0.5, math.exp(-0.5) - 0.5), ("k1", -2.0, -2.0), ("k3", 0.0, 0.0)],
)
def test_hand_numbers(name, gap, value):
    estimate = kl.estimate(name, torch.tensor([[-1.0]], dtype=D), torch.tensor([[-1.0 - gap]], dtype=D))
    assert estimate.item() == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_the_mean_over_the_policys_draws_is_the_kl(name):
    z, ref = distributions()
    logp, ref_logp = z.log_softmax(-1), ref.log_softmax(-1)
    exact = (logp.exp() * (logp - ref_logp)).sum()
    estimated = (logp.exp() * kl.estimate(name, logp[None], ref_logp[None])[0]).sum()
    torch.testing.assert_close(estimated, exact)


def expected_gradient(name: str, gradient: str, *, on_policy: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient of the estimate averaged over draws, and the gradient of the exact KL, with respect to the logits."""
    z, ref = distributions(1)
    ref_logp = ref.log_softmax(-1)
    x = z.clone().requires_grad_()
    logp = x.log_softmax(-1)
    old = logp.detach() if on_policy else (z + torch.linspace(-0.5, 0.5, 5, dtype=D)).log_softmax(-1)
    value = kl.estimate(
        name, logp[None], ref_logp[None], gradient=gradient,
        old_logp_nt=old[None] if gradient == "importance" else None,
    )[0]  # fmt: skip
    (estimated,) = torch.autograd.grad((old.exp() * value).sum(), x, retain_graph=True)
    (exact,) = torch.autograd.grad((logp.exp() * (logp - ref_logp)).sum(), x)
    return estimated, exact


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_k2_gradient_is_unbiased_on_policy_whatever_the_value(name):
    torch.testing.assert_close(*expected_gradient(name, "k2"))


@pytest.mark.parametrize("name", ["k1", "k3"])
@pytest.mark.parametrize("on_policy", [True, False])
def test_importance_gradient_is_unbiased_on_and_off_policy(name, on_policy):
    torch.testing.assert_close(*expected_gradient(name, "importance", on_policy=on_policy))


def test_plain_k2_is_unbiased_and_plain_k1_and_k3_are_not():
    torch.testing.assert_close(*expected_gradient("k2", "plain"))
    estimated, exact = expected_gradient("k1", "plain")
    torch.testing.assert_close(estimated, torch.zeros_like(exact), atol=1e-12, rtol=0)
    estimated, exact = expected_gradient("k3", "plain")
    assert (estimated - exact).abs().max() > 0.01


def test_plain_k3_has_the_gradient_of_the_reversed_kl():
    z, ref = distributions(1)
    estimated, _ = expected_gradient("k3", "plain")
    x = z.clone().requires_grad_()
    reverse = (ref.softmax(-1) * (ref.log_softmax(-1) - x.log_softmax(-1))).sum()
    torch.testing.assert_close(estimated, torch.autograd.grad(reverse, x)[0])


@pytest.mark.parametrize(("name", "gradient"), list(itertools.product(["k1", "k2", "k3"], ["plain", "importance"])))
def test_gradients_equal_finite_differences(name, gradient):
    rng = torch.Generator().manual_seed(3)
    logp = torch.randn(3, 4, generator=rng, dtype=D)
    ref, old = logp + 0.4 * torch.randn(3, 4, generator=rng, dtype=D), logp + 0.1
    logp[0, 0], ref[0, 0] = -2.0, -2.0005
    options = {"gradient": gradient, "old_logp_nt": old if gradient == "importance" else None}
    assert torch.autograd.gradcheck(lambda x: kl.estimate(name, x, ref, **options), logp.requires_grad_(), atol=1e-7)


@given(st.floats(-700, 700))
@settings(max_examples=200, deadline=None)
def test_k3_is_never_negative_and_always_finite_in_float32(gap):
    logp = torch.tensor([[-1.0]], requires_grad=True)
    value = kl.estimate("k3", logp, torch.tensor([[-1.0 - gap]]))
    value.sum().backward()
    assert value.item() >= 0
    assert math.isfinite(value.item())
    assert math.isfinite(logp.grad.item())
    assert logp.grad.item() * gap >= 0


def test_k3_keeps_its_digits_for_small_gaps():
    for gap in (1e-5, 1e-4, 1e-3, 1e-2, 9.9e-2, 1.01e-1, 0.5):
        value = kl.estimate("k3", torch.tensor([[0.0]]), torch.tensor([[-gap]])).item()
        exact = math.expm1(-float(torch.tensor(gap))) + float(torch.tensor(gap))
        assert value == pytest.approx(exact, rel=5e-6)


def test_k3_and_its_slope_are_continuous_where_it_is_bounded():
    x = torch.tensor([[-20.0 - 1e-6, -20.0 + 1e-6]], dtype=D, requires_grad=True)
    value = kl.estimate("k3", x, torch.zeros(1, 2, dtype=D))
    value.sum().backward()
    assert value[0, 0].item() == pytest.approx(value[0, 1].item(), rel=1e-5)
    assert x.grad[0, 0].item() == pytest.approx(x.grad[0, 1].item(), rel=1e-5)


def test_no_gradient_flows_into_the_reference():
    ref = torch.zeros(1, 2, requires_grad=True)
    kl.estimate("k3", torch.ones(1, 2, requires_grad=True), ref).sum().backward()
    assert ref.grad is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: kl.estimate("k4", x, x), "unknown KL estimator 'k4'"),
        (lambda x: kl.estimate("k1", x, x[:, :1]), "shape"),
        (lambda x: kl.estimate("k1", x, x, gradient="none"), "unknown KL gradient"),
        (lambda x: kl.estimate("k1", x, x, gradient="importance"), "needs old_logp"),
        (lambda x: kl.estimate("k1", x, x, old_logp_nt=x), "the others take none"),
        (lambda x: kl.estimate("k1", x, x, gradient="importance", old_logp_nt=x[:1]), "old_logp"),
    ],
)
def test_bad_input_raises_one_clear_line(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.zeros(2, 3))
