"""Entropy: exact, from samples, and what the reward does to it."""

from __future__ import annotations

import math

import pytest
import torch

from levelhead.objective import entropy

D = torch.float64


def textbook(logits: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    logp = (logits / temperature).log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


def test_hand_numbers():
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 1000.0, 0.0, 0.0], [math.log(3), 0.0, -1e4, -1e4]])
    expected = [math.log(4), 0.0, -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))]
    assert entropy.from_logits(logits).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_blocks_change_neither_value_nor_gradient(block, temperature):
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0), dtype=D)
    grads, values = [], []
    weight = torch.linspace(-1, 1, 6, dtype=D).view(2, 3)
    for function in (
        lambda x: textbook(x, temperature),
        lambda x: entropy.from_logits(x, temperature=temperature, block_elements=block),
    ):
        x = logits.clone().requires_grad_()
        value = function(x)
        (value * weight).sum().backward()
        values.append(value.detach())
        grads.append(x.grad)
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*grads)


def test_gradient_equals_finite_differences():
    logits = torch.randn(4, 6, generator=torch.Generator().manual_seed(1), dtype=D, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: entropy.from_logits(x, temperature=1.3, block_elements=12), logits)


def test_half_precision_logits_give_a_float32_entropy():
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_()
    value = entropy.from_logits(logits)
    value.sum().backward()
    assert value.dtype == torch.float32
    assert logits.grad.dtype == torch.bfloat16


def test_samples_have_the_value_and_the_gradient_of_the_entropy_on_average():
    logits = torch.randn(5, generator=torch.Generator().manual_seed(2), dtype=D)
    x = logits.clone().requires_grad_()
    logp = x.log_softmax(-1)
    average = (logp.exp().detach() * entropy.from_samples(logp[None])[0]).sum()
    (estimated,) = torch.autograd.grad(average, x, retain_graph=True)
    exact = textbook(x)
    torch.testing.assert_close(average, exact)
    torch.testing.assert_close(estimated, torch.autograd.grad(exact, x)[0])
    naive = torch.autograd.grad((logits.softmax(-1) * -x.log_softmax(-1)).sum(), x)[0]
    torch.testing.assert_close(naive, torch.zeros_like(naive), atol=1e-12, rtol=0)


def test_covariance_predicts_what_a_policy_gradient_step_does_to_the_entropy():
    # Softmax over logits: a natural-gradient step on A moves the logits by step * A, exactly Cui et al.'s setting.
    logits = torch.randn(6, generator=torch.Generator().manual_seed(3), dtype=D)
    advantages = torch.randn(6, generator=torch.Generator().manual_seed(4), dtype=D)
    p, logp, step = logits.softmax(-1), logits.log_softmax(-1), 1e-5
    exact_covariance = (p * logp * advantages).sum() - (p * logp).sum() * (p * advantages).sum()
    change = textbook(logits + step * advantages) - textbook(logits)
    assert change.item() == pytest.approx(-step * exact_covariance.item(), rel=1e-3)
    counts = (p * 20000).round().long()
    found = entropy.covariance(
        logp.repeat_interleave(counts)[None], advantages.repeat_interleave(counts)[None], torch.ones(1, counts.sum())
    )
    assert found.item() == pytest.approx(exact_covariance.item(), rel=1e-2)


def test_covariance_ignores_masked_tokens():
    logp, advantages = torch.tensor([[-1.0, -2.0, 77.0]]), torch.tensor([[1.0, -1.0, 77.0]])
    assert entropy.covariance(logp, advantages, torch.tensor([[1, 1, 0]])).item() == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: entropy.from_logits(torch.zeros(2, 3), temperature=0.0), "temperature"),
        (lambda: entropy.from_logits(torch.tensor([[0.0, float("nan")]])), "not finite"),
        (lambda: entropy.covariance(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 2)), "no token"),
        (lambda: entropy.covariance(torch.zeros(1, 2), torch.zeros(1), torch.ones(1, 2)), "one shape"),
    ],
)
def test_bad_input_raises_one_clear_line(call, message):
    with pytest.raises(ValueError, match=message):
        call()
