"""What computes without rounding: a policy of the same weights in float32, where it can be had."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from levelhead.policy import rounding
from levelhead.policy.load import load_policy
from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from levelhead.policy.rounding import (
    coarsest,
    exact_policy,
    foresee_visible,
    free_bytes,
    full_products,
    some_entries,
    tolerance,
    visible_change,
    why_not_exact,
)
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


def test_what_a_type_shows_of_a_change_is_that_of_all_rounded_weights() -> None:
    generator = torch.Generator().manual_seed(3)
    weights = [torch.randn(40, 50, generator=generator) * 0.05, torch.randn(70, generator=generator)]
    changed = [weight + 2e-4 * torch.randn(weight.shape, generator=generator) for weight in weights]
    before, after = ([weight.flatten() for weight in part] for part in (weights, changed))
    seen = visible_change(before, after, [2000.0, 70.0], torch.bfloat16)
    change = torch.cat([(b - a).flatten() for a, b in zip(weights, changed, strict=True)])
    rounded = [(b.bfloat16().float() - a.bfloat16().float()).flatten() for a, b in zip(weights, changed, strict=True)]
    assert seen.norm == pytest.approx(float(torch.cat(rounded).norm() / change.norm()), rel=1e-4)
    assert seen.cosine == pytest.approx(float(torch.cosine_similarity(torch.cat(rounded), change, 0)), rel=1e-4)
    assert 0.1 < seen.cosine < 0.95


def test_a_coarser_type_a_smaller_rate_and_fewer_updates_show_less() -> None:
    weights = [torch.randn(200, 100, generator=torch.Generator().manual_seed(0)).mul(0.05).bfloat16().float()]
    shown = [foresee_visible(weights, kind, 1e-5).cosine for kind in (torch.float32, torch.float16, torch.bfloat16)]
    assert shown[0] > 0.999 > shown[1] > shown[2]
    rates = [foresee_visible(weights, torch.bfloat16, rate).cosine for rate in (1e-2, 1e-4, 1e-6)]
    updates = [foresee_visible(weights, torch.bfloat16, 1e-5, n).cosine for n in (10_000, 100, 1)]
    assert rates == sorted(rates, reverse=True)
    assert updates == sorted(updates, reverse=True)


def test_entries_are_copies_spread_over_a_weight() -> None:
    weight = torch.arange(100.0).view(10, 10)
    (entries,) = some_entries([weight, torch.empty(0)], 10)
    weight.zero_()
    assert entries.tolist() == [float(n) for n in range(0, 100, 10)]


def test_whole_weights_on_a_cpu_are_computed_with_in_float32_unless_the_recipe_says_otherwise() -> None:
    assert of("auto").compute_dtype == torch.float32
    assert of("bfloat16").compute_dtype == torch.bfloat16


def test_what_rounding_explains_grows_with_the_logits_in_half_precision_alone() -> None:
    policy = tiny_policy()
    assert tolerance(policy, 30.0) == tolerance(policy)
    policy.compute_dtype = torch.bfloat16
    assert tolerance(policy, 5.0) == tolerance(policy)
    assert tolerance(policy, 30.0).mean == pytest.approx(30 / 256)
