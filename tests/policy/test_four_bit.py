"""A frozen base in four bits: what it takes, what is refused, and that an adapter over it trains as over any other."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from levelhead.errors import InputError
from levelhead.policy import four_bit
from levelhead.policy.footprint import Footprints
from levelhead.policy.load import load_policy
from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from levelhead.policy.rounding import exact_policy, why_not_exact
from levelhead.preflight.memory_plan import Prompts, Target
from levelhead.preflight.planner import Planner
from levelhead.recipe import Recipe
from levelhead.recipe.model import Model
from levelhead.records import Prompt
from levelhead.rollout.generators.vllm.weights import named_weights

needs = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed: pip install bitsandbytes"
)
EXAMPLES = [TokenSequence(tuple(range(5, 30)), (40, 41, 42)), TokenSequence(tuple(range(9, 20)), (7, 8))]


def section(dtype: str = "float32", **lora: Any) -> Model:
    adapter = {"r": 4, "alpha": 8, "load_in_4bit": True, **lora}
    return Model.model_validate({"preset": "base-tiny", "dtype": dtype, "device": "cpu", "lora": adapter})


def loss(policy: Policy) -> torch.Tensor:
    (batch,) = policy.pack(EXAMPLES, 1000)
    return -policy.score(batch).logp.mean()


def draw(policy: Policy) -> None:
    decoder = policy.backend.decoders(policy)([Prompt("0", "", (), (5, 6, 7))], 2, 4)
    with torch.no_grad():
        decoder.step(decoder.start().argmax(-1))


def gradients(policy: Policy) -> dict[str, torch.Tensor]:
    policy.model.zero_grad(set_to_none=True)
    with policy.training():
        loss(policy).backward()  # type: ignore[no-untyped-call]
    return {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}


def stir(policy: Policy) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)


def test_four_bits_a_number_one_byte_a_block_of_64_four_bytes_256_blocks() -> None:
    assert four_bit.packed_bytes(4096 * 4096) == 8_388_608 + 262_144 + 4_096
    assert four_bit.packed_bytes(64) == 32 + 1 + 4


def test_without_bitsandbytes_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "bitsandbytes" else real(name, *a)
    )
    with pytest.raises(InputError) as error:
        load_policy(section())
    assert str(error.value).startswith("model.lora.load_in_4bit: needs bitsandbytes")
    assert "\n" not in str(error.value)


def test_a_policy_made_from_nothing_has_no_base_to_hold() -> None:
    with pytest.raises(ValidationError, match="load_in_4bit"):
        Model.model_validate({"preset": "tiny", "lora": {"load_in_4bit": True}})


def test_a_server_that_holds_another_base_is_refused() -> None:
    engine = {"kind": "vllm", "urls": ["http://127.0.0.1:1"], "shared": "s", "sync": "adapter"}
    recipe = {
        "model": section().model_dump(),
        "tasks": [{"kind": "workflow"}],
        "grpo": {"loss": {"importance": "token_truncate"}},
        "generator": engine,
    }
    with pytest.raises(ValidationError, match=r"load_in_4bit; use files"):
        Recipe.model_validate(recipe)
    Recipe.model_validate({**recipe, "generator": {**engine, "sync": "files"}})


def test_the_plan_counts_packed_weights_without_bitsandbytes() -> None:
    def weights(model: Model) -> int:
        recipe = Recipe.model_validate({"model": model.model_dump(), "tasks": [{"kind": "workflow"}], "grpo": {}})
        plan = Planner(Target("cuda", torch.bfloat16, None, "a GPU"), Prompts(32, "given")).plan(recipe)
        return next(part.size for part in plan.parts if part.name == "weights")

    packed, whole = weights(section("bfloat16")), weights(section("bfloat16", load_in_4bit=False))
    layers = 4 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 384 * 128)  # linear layers of base-tiny
    assert whole - packed == pytest.approx(2 * layers - layers * (0.5 + 1 / 64 + 4 / 64 / 256), rel=1e-3)


@needs
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_base_takes_what_was_planned(dtype: str) -> None:
    policy = load_policy(section(dtype))
    taken = sum(t.numel() * t.element_size() for t in [*policy.model.parameters(), *policy.model.buffers()])
    states = {id(p): p.quant_state for p in policy.model.parameters() if four_bit.is_packed(p)}
    taken += sum(s.absmax.numel() + 4 * s.state2.absmax.numel() for s in states.values())
    planned = Footprints(section(dtype), "cpu", policy.compute_dtype).policy.model
    assert len(states) == 28
    assert taken == four_bit.weight_bytes(planned)


@needs
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_trains_over_it_and_the_base_stays(dtype: str) -> None:
    policy = load_policy(section(dtype))
    frozen = {n: p.detach().clone() for n, p in policy.model.named_parameters() if not p.requires_grad}
    optimizer = torch.optim.AdamW(policy.parameters, lr=3e-3, fused=True)
    before = loss(policy).item()
    for _ in range(12):
        gradients(policy)
        optimizer.step()
        draw(policy)
    assert loss(policy).item() < before - 1
    assert all(torch.equal(p, frozen[n]) for n, p in policy.model.named_parameters() if n in frozen)


@needs
def test_gradients_after_sampling_are_those_of_before() -> None:
    policy = load_policy(section())
    stir(policy)
    before = gradients(policy)
    draw(policy)
    after = gradients(policy)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@needs
def test_what_a_server_is_sent_is_the_policy() -> None:
    policy, whole = load_policy(section()), load_policy(Model(preset="base-tiny", dtype="float32", device="cpu"))
    stir(policy)
    sent = dict(named_weights(policy))
    base = float((loss(whole) - loss(policy)).abs())
    with torch.no_grad():
        for name, weight in whole.model.named_parameters():
            weight.copy_(sent[name])
    assert float((loss(whole) - loss(policy)).abs()) < 1e-5 < base


@needs
def test_an_exact_copy_multiplies_the_same_numbers_in_float32() -> None:
    policy = load_policy(section("bfloat16"))
    stir(policy)
    assert why_not_exact(policy) is None
    exact = exact_policy(policy)
    packed = [p for p in policy.model.parameters() if four_bit.is_packed(p)]
    assert {p.data_ptr() for p in packed} <= {p.data_ptr() for p in exact.model.parameters()}
    plain = load_policy(section("float32", load_in_4bit=False))
    with torch.no_grad():
        for mine, theirs in zip(plain.model.parameters(), exact.model.parameters(), strict=True):
            mine.copy_(four_bit.unpacked(theirs))
    rounded, value, want = (loss(one).item() for one in (policy, exact, plain))
    assert value == pytest.approx(want, abs=1e-4)
    assert abs(rounded - want) > 1e-3, "rounding is to be seen"
    grads, wanted = gradients(exact), gradients(plain)
    for name, grad in grads.items():
        assert (grad - wanted[name]).norm() < 1e-3 * wanted[name].norm(), name
