"""What computes without rounding: a policy of the same weights in float32, where it can be had."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from levelhead.policy import rounding
from levelhead.policy.load import load_policy
from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from levelhead.policy.rounding import coarsest, exact_policy, free_bytes, full_products, why_not_exact
from levelhead.recipe.model import Model
from small_run import TEXTS, TINY, tiny_policy

LORA = {"r": 2}


def of(dtype: str, **model: Any) -> Policy:
    return load_policy(Model(preset="tiny", tiny=TINY, dtype=dtype, **model), texts=TEXTS, seed=1)


def halved(policy: Policy) -> Policy:
    """With frozen weights in bfloat16, as a pretrained base is loaded under an adapter."""
    for parameter in policy.model.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.bfloat16()
    return policy


def test_the_coarsest_type_is_that_of_passes_or_of_weights() -> None:
    assert coarsest(of("float32")) == torch.float32
    assert coarsest(of("bfloat16")) == torch.bfloat16
    assert coarsest(of("float16")) == torch.float16
    assert coarsest(halved(of("float32", lora=LORA))) == torch.bfloat16


@pytest.mark.parametrize("lora", [None, LORA])
def test_an_exact_policy_computes_in_float32_and_its_gradients_arrive_in_the_same_leaves(lora: Any) -> None:
    policy = of("bfloat16", lora=lora)
    if lora:
        halved(policy)
    assert why_not_exact(policy) is None
    exact = exact_policy(policy)
    assert coarsest(exact) == torch.float32
    assert all(a is b for a, b in zip(exact.parameters, policy.parameters, strict=True))
    (micro,) = exact.pack([TokenSequence((1, 2, 3), (4, 5, 6))], 100)
    logp = exact.score(micro).logp
    logp.sum().backward()
    assert any(p.grad is not None and bool(p.grad.any()) for p in policy.parameters)
    if not lora:
        plain = tiny_policy(seed=1)
        torch.testing.assert_close(logp, plain.score(micro).logp)
    assert coarsest(policy) == torch.bfloat16


def test_it_is_not_to_be_had_of_trained_weights_in_half_precision() -> None:
    policy = of("bfloat16")
    for parameter in policy.parameters:
        parameter.data = parameter.data.bfloat16()
    assert why_not_exact(policy) == "some weights are bfloat16"


def test_it_is_not_to_be_had_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = halved(of("bfloat16", lora=LORA))
    monkeypatch.setattr(rounding, "free_bytes", lambda _device: 1000)
    assert "in float32" in str(why_not_exact(policy))
    assert why_not_exact(of("bfloat16")) is None


def test_free_memory_is_known_on_the_cpu_and_unknown_where_nobody_says() -> None:
    free = free_bytes(torch.device("cpu"))
    assert free is not None
    assert 0 < free < 1 << 50
    assert free_bytes(torch.device("meta")) is None


def test_products_are_whole_inside_and_as_they_were_outside() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with full_products():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
