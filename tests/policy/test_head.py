from __future__ import annotations

import pytest
import torch
from torch import Tensor

from levelhead.policy.head import token_statistics

CASES = [
    {},
    {"temperature": 0.7},
    {"softcap": 3.0},
    {"scale": 0.25},
    {"bias": True},
    {"temperature": 1.6, "softcap": 2.0, "scale": 1.7, "bias": True},
]


def problem(dtype: torch.dtype, *, bias: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    hidden, weight = draw(7, 5), draw(11, 5)
    targets = torch.randint(11, (7,), generator=generator)
    return hidden, weight, targets, draw(11) if bias else None


def in_full(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    temperature: float = 1.0,
    softcap: float | None = None,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    logits = hidden @ weight.T
    if bias is not None:
        logits = logits + bias
    logits = logits * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logprobs = (logits / temperature).log_softmax(-1)
    return logprobs.gather(-1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("block_elements", [1, 33, 1 << 20])
@pytest.mark.parametrize("stored_elements", [0, 40, 1 << 20])
def test_values_and_gradients_equal_autograd_on_the_full_logits(
    options: dict, block_elements: int, stored_elements: int
) -> None:
    options = dict(options)
    hidden, weight, targets, bias = problem(torch.float64, bias=options.pop("bias", False))
    leaves = [leaf for leaf in (hidden, weight, bias) if leaf is not None]
    sizes = {"block_elements": block_elements, "stored_elements": stored_elements}
    blocks = token_statistics(hidden, weight, targets, bias=bias, **sizes, **options)
    whole = in_full(hidden, weight, targets, bias, **options)
    pull = torch.randn(2, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    grads = torch.autograd.grad((pull[0] * blocks[0] + pull[1] * blocks[1]).sum(), leaves)
    wanted = torch.autograd.grad((pull[0] * whole[0] + pull[1] * whole[1]).sum(), leaves)
    for a, b in zip((*blocks, *grads), (*whole, *wanted), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("options", CASES)
def test_gradients_equal_finite_differences(options: dict) -> None:
    options = dict(options)
    hidden, weight, targets, bias = problem(torch.float64, bias=options.pop("bias", False))
    leaves = tuple(leaf for leaf in (hidden, weight, bias) if leaf is not None)

    def run(*given: Tensor) -> tuple[Tensor, Tensor]:
        return token_statistics(
            given[0], given[1], targets, bias=given[2] if bias is not None else None, block_elements=22, **options
        )

    assert torch.autograd.gradcheck(run, leaves)


@pytest.mark.parametrize(("stored_elements", "stored"), [(0, 0), (20, 0), (21, 21), (50, 42), (1 << 20, 77)])
def test_no_more_logits_are_kept_than_allowed(stored_elements: int, stored: int) -> None:
    hidden, weight, targets, _ = problem(torch.float32, bias=False)
    saved: list[Tensor] = []

    def save(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        token_statistics(
            hidden, weight, targets, block_elements=21, stored_elements=stored_elements
        )  # 7 x 3 logits each
    assert sum(tensor.numel() for tensor in saved if tensor.ndim == 2) == hidden.numel() + weight.numel() + stored


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stored_elements", [21, 50, 1 << 20])
def test_kept_logits_give_the_gradients_of_logits_computed_again(dtype: torch.dtype, stored_elements: int) -> None:
    hidden, weight, targets, bias = problem(dtype, bias=True)
    sides = []
    for stored in (0, stored_elements):
        logp, entropy = token_statistics(
            hidden, weight, targets, bias=bias, temperature=0.7, block_elements=21, stored_elements=stored
        )
        sides.append(torch.autograd.grad((logp - 0.5 * entropy).sum(), (hidden, weight, bias)))
    size = max(float(grad.abs().max()) for grad in sides[0])
    atol = (1e-6 if dtype == torch.float32 else 2**-7) * size
    for again, stored in zip(*sides, strict=True):
        torch.testing.assert_close(stored, again, rtol=0, atol=atol)


def test_kept_logits_serve_a_second_backward_pass() -> None:
    hidden, weight, targets, _ = problem(torch.float64, bias=False)
    logp, entropy = token_statistics(hidden, weight, targets, block_elements=21, stored_elements=50)
    total = (logp + entropy).sum()
    first, second = (torch.autograd.grad(total, (hidden, weight), retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_no_targets_have_no_gradient() -> None:
    hidden, weight, targets, bias = problem(torch.float32, bias=True)
    logp, entropy = token_statistics(hidden[:0], weight, targets[:0], bias=bias)
    (logp.sum() + entropy.sum()).backward()
    assert not any(leaf.grad.any() for leaf in (weight, bias))


def test_half_precision_inputs_give_float32_statistics() -> None:
    hidden, weight, targets, _ = problem(torch.bfloat16, bias=False)
    logp, entropy = token_statistics(hidden, weight, targets)
    assert logp.dtype == entropy.dtype == torch.float32
    want = in_full((hidden @ weight.T).float(), torch.eye(11), targets, None)
    torch.testing.assert_close((logp, entropy), want)


def test_only_what_is_trained_gets_a_gradient() -> None:
    hidden, weight, targets, _ = problem(torch.float32, bias=False)
    frozen = weight.detach()
    logp, _ = token_statistics(hidden, frozen, targets)
    logp.sum().backward()
    assert hidden.grad is not None
    assert frozen.grad is None


def test_a_temperature_of_zero_cannot_be_scored() -> None:
    hidden, weight, targets, _ = problem(torch.float32, bias=False)
    with pytest.raises(ValueError, match="temperature must be positive"):
        token_statistics(hidden, weight, targets, temperature=0.0)
