"""Sampling in a coarser type than the weights': copies are made once a batch, and change nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from levelhead.policy.backends.converted import Converted, converted_bytes
from levelhead.policy.backends.cpu.backend import SharedDecoder
from levelhead.policy.policy import Policy
from levelhead.records import Prompt
from small_run import codec_ids, tiny_policy


def half_policy(lora: Any = None) -> Policy:
    policy = tiny_policy(lora=lora)
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(1))
    policy.compute_dtype = torch.bfloat16
    return policy


class Casts(TorchDispatchMode):
    """Counts the elements that are converted to bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.to, torch.ops.aten._to_copy) and out.dtype == torch.bfloat16:
            self.elements += out.numel() * (args[0].dtype == torch.float32)
        return out


@pytest.mark.parametrize("lora", [None, {"r": 4}], ids=["full", "lora"])
@pytest.mark.parametrize("room", [0, 9000, 1 << 30])
def test_copies_in_the_compute_type_give_the_logits_of_autocast_to_the_bit(lora: Any, room: int) -> None:
    policy = half_policy(lora)
    policy.merge_bytes = room
    converted = Converted(policy)
    assert (converted_bytes(policy) > 0) == (room > 0)
    assert converted_bytes(policy) <= room
    ids = torch.tensor([codec_ids()[:9]])
    with torch.no_grad():
        assert torch.equal(
            policy.forward(converted, input_ids=ids).logits, policy.forward(policy.base, input_ids=ids).logits
        )
    assert not list(converted.parameters())
    policy.compute_dtype = torch.float32
    assert converted_bytes(policy) == 0


@torch.inference_mode()
@pytest.mark.parametrize("lora", [None, {"r": 4}], ids=["full", "lora"])
def test_on_a_cpu_no_token_converts_the_weights(lora: Any) -> None:
    policy = half_policy(lora)
    ids = codec_ids()
    prompts = [Prompt("p", "task", (), ids[:6]), Prompt("q", "task", (), ids[20:24])]
    decoders = [policy.backend.decoders(policy)(prompts, 2, 4), SharedDecoder(policy, None, prompts, 2, 4)]
    logits, casts = [], []
    for decoder in decoders:
        first = decoder.start()
        with Casts() as counter:
            logits.append([first, decoder.step(torch.tensor(ids[30:34]))])
        casts.append(counter.elements)
    for ours, plain in zip(*logits, strict=True):
        assert torch.equal(ours, plain)
    assert casts[1] - casts[0] >= converted_bytes(policy) // 2
