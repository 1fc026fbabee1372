"""Adapted layers as one product, against PEFT's own forward: values, gradients, and when PEFT's own runs."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear
from torch import Tensor, nn

from levelhead.policy import adapter
from levelhead.policy.adapter import adapted, adapted_weight, join_adapters
from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from small_run import codec_ids, tiny_policy


class Net(nn.Module):
    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 8, bias=bias), nn.Linear(8, 5, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.two(self.one(x).tanh())
        return output


def adapted_net(*, join: bool, dtype: torch.dtype = torch.float64, **config: Any) -> Any:
    """Two adapted layers, whose second needs the gradient of its input and whose first does not."""
    torch.manual_seed(0)
    config = {"r": 3, "lora_alpha": 12, "target_modules": ["one", "two"], **config}
    bias = config.pop("with_bias", True)
    model = get_peft_model(Net(bias=bias), LoraConfig(**config)).to(dtype)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, generator=generator)
    if join:
        join_adapters(model)
    return model


@contextmanager
def calls() -> Iterator[list[int]]:
    """How often the joined product runs."""
    seen: list[int] = []

    def counting(*args: Any) -> Tensor:
        seen.append(1)
        return adapted(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter, "adapted", counting)
        yield seen


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("bias", "dtype"), itertools.product([True, False], [torch.float64, torch.bfloat16]))
def test_values_and_gradients_are_those_of_peft(bias: bool, dtype: torch.dtype) -> None:
    x = torch.randn(4, 7, 6, generator=torch.Generator().manual_seed(2)).to(dtype)
    sides = []
    for join in (True, False):
        model = adapted_net(join=join, dtype=dtype, with_bias=bias)
        model.eval()
        with calls() as seen:
            out = model(x)
        assert len(seen) == (2 if join else 0)
        out.float().square().sum().backward()
        sides.append((out, gradients(model)))
    (out, grads), (want, wanted) = sides
    assert grads.keys() == wanted.keys()
    assert len(grads) == 4
    for one, other in [(out, want), *((grads[name], wanted[name]) for name in grads)]:
        assert float((one - other).norm() / other.norm()) < (1e-12 if dtype == torch.float64 else 0.02)


def test_gradients_are_those_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    x, low, high = (
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 3, 4), (2, 4), (5, 2))
    )
    weight, bias = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *given: adapted(given[0], weight, bias, *given[1:], 0.7), (x, low, high))


@pytest.mark.parametrize(
    "config", [{"lora_dropout": 0.5}, {"use_dora": True}, {"bias": "lora_only"}, {"lora_bias": True}]
)
def test_what_is_more_than_two_matrices_runs_as_peft_has_it(config: dict[str, Any]) -> None:
    model = adapted_net(join=True, dtype=torch.float32, **config)
    model.train()
    with calls() as seen:
        model(torch.randn(2, 6))
    assert not seen


def test_autocast_and_a_switched_off_adapter_run_as_peft_has_it() -> None:
    model = adapted_net(join=True, dtype=torch.float32)
    x = torch.randn(2, 6)
    with calls() as seen:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(x)
        with model.disable_adapter():
            off = model(x)
    assert not seen
    assert torch.equal(off, adapted_net(join=False, dtype=torch.float32).get_base_model().two.base_layer(
        model.get_base_model().one.base_layer(x).tanh()
    ))  # fmt: skip


def test_layers_stay_pefts_own_in_copies_and_checkpoints(tmp_path: Any) -> None:
    model, plain = adapted_net(join=True), adapted_net(join=False)
    assert isinstance(model.get_base_model().one, Linear)
    assert model.state_dict().keys() == plain.state_dict().keys()
    inference_copy = copy.deepcopy(model)
    with torch.no_grad():
        inference_copy.get_base_model().one.lora_B["default"].weight.zero_()
    x = torch.randn(2, 6, dtype=torch.float64)
    assert torch.equal(model(x), adapted_net(join=True)(x))
    assert not torch.allclose(inference_copy(x), model(x))
    model.save_pretrained(str(tmp_path))
    assert (tmp_path / "adapter_model.safetensors").is_file()


def gradient_of(policy: Policy) -> dict[str, Tensor]:
    ids = codec_ids()
    sequences = [TokenSequence(ids[:9], ids[20 + 7 * i : 26 + 7 * i], 0) for i in range(3)]
    policy.model.zero_grad(set_to_none=True)
    with policy.training():
        for micro in policy.pack(sequences, 10_000):
            stats = policy.score(micro)
            (stats.logp.sum() + 0.3 * stats.entropy.sum()).backward()
    return gradients(policy.model)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_policy_has_the_gradient_that_pefts_layers_give(monkeypatch: pytest.MonkeyPatch, checkpointing: bool) -> None:
    def made() -> Policy:
        policy = tiny_policy(lora={"r": 4}, gradient_checkpointing=checkpointing)
        generator = torch.Generator().manual_seed(1)
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.1, generator=generator)
        return policy

    with calls() as seen:
        gradient = gradient_of(made())
    assert len(seen) >= 14
    monkeypatch.setattr(adapter, "_only_adapter", lambda *_: None)
    wanted = gradient_of(made())
    assert gradient.keys() == wanted.keys()
    for name, grad in gradient.items():
        torch.testing.assert_close(grad, wanted[name], rtol=1e-4, atol=1e-5)


def test_a_layer_without_an_adapter_gives_its_own_weight() -> None:
    layer = torch.nn.Linear(3, 2)
    assert adapted_weight(layer) is layer.weight
