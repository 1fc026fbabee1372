"""Decoding over shared memory against decoding with transformers' own cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from levelhead.policy.backends.base import Decoder
from levelhead.policy.backends.cpu import memory
from levelhead.policy.backends.cpu.backend import SharedDecoder
from levelhead.policy.backends.sdpa import PaddedDecoder, Sdpa
from levelhead.policy.policy import Policy
from levelhead.records import Prompt
from small_run import codec_ids, tiny_policy


def prompts() -> list[Prompt]:
    """Of several lengths; two begin alike, and one is the beginning of another."""
    ids = codec_ids()
    token_ids = [ids[:4], ids[:9], (*ids[:4], *ids[30:40]), ids[50:53], ids[:4]]
    return [Prompt(f"p{i}", "task", (), tuple(part)) for i, part in enumerate(token_ids)]


def played(decoder: Decoder, rows: int, vocab: int) -> list[torch.Tensor]:
    """All logits of a decoding in which rows leave: prompts are left with unequal numbers, and with none."""
    live = torch.arange(rows)
    logits = [decoder.start()]
    for position in range(6):
        tokens = (live * 7 + position * 3) % vocab
        if position in (1, 2, 4):
            keep = torch.tensor([i for i in range(len(live)) if (i + position) % 3 and not 3 <= int(live[i]) < 6])
            decoder.keep(keep)
            live, tokens = live[keep], tokens[keep]
        logits.append(decoder.step(tokens))
    return logits


def both(policy: Policy) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    assert policy.backend.name == "cpu"
    with torch.inference_mode():
        shared, padded = (
            played(decoder, 15, policy.codec.vocab_size)
            for decoder in (SharedDecoder(policy, None, prompts(), 3, 8), PaddedDecoder(policy, prompts(), 3, 8))
        )
    assert [len(x) for x in shared] == [len(x) for x in padded]
    assert len(shared[-1]) < len(shared[0]) // 2
    return shared, padded


@pytest.mark.parametrize("model", [{}, {"lora": {"r": 4}}], ids=["full", "lora"])
def test_shared_memory_gives_the_logits_of_the_usual_cache(model: dict[str, Any]) -> None:
    policy = tiny_policy(**model)
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(1))
    for a, b in zip(*both(policy), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_shared_memory_in_half_precision_differs_by_rounding_alone() -> None:
    policy = tiny_policy()
    exact, _ = both(policy)
    policy.compute_dtype = torch.bfloat16
    shared, padded = both(policy)
    for a, b, want in zip(shared, padded, exact, strict=True):
        assert float((a - want).norm() / want.norm()) < 2 * float((b - want).norm() / want.norm()) + 1e-3


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("prompt_of", [[0, 0, 0, 1, 1, 1], [1, 0, 1, 1, 0, 2]])
def test_plain_products_and_the_fused_kernel_are_attention(hidden: bool, prompt_of: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    rows, prompts = torch.tensor(prompt_of), max(prompt_of) + 1
    shared, own = (drawn(prompts, 3, 7, 8), drawn(prompts, 3, 7, 8)), (drawn(6, 3, 5, 8), drawn(6, 3, 5, 8))
    mask = torch.zeros(prompts, 7).index_fill_(1, torch.tensor([0, 1]), -torch.inf) if hidden else None
    query = drawn(6, 3, 2, 8)
    whole = [torch.cat([a[rows], b], 2) for a, b in zip(shared, own, strict=True)]
    bias = None if mask is None else torch.cat([mask[rows], torch.zeros(6, 5)], 1)[:, None, None]
    expected = torch.nn.functional.scaled_dot_product_attention(query, *whole, attn_mask=bias, scale=0.3)
    pairs = [(keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in (shared, own)]
    heads = None if mask is None else mask.repeat_interleave(3, 0)
    for kernel in (memory._products, memory._fused):
        attended = kernel(query.flatten(0, 1), *pairs, 0.3, heads, memory._RowSlots(rows, 3))
        torch.testing.assert_close(attended, expected.flatten(0, 1), atol=1e-5, rtol=1e-5)


def test_a_backend_decodes_in_its_own_way() -> None:
    policy = tiny_policy()
    assert isinstance(policy.backend.decoders(policy)(prompts(), 2, 4), SharedDecoder)
    assert isinstance(Sdpa().decoders(policy)(prompts(), 2, 4), PaddedDecoder)


def test_a_common_beginning_of_prompts_is_computed_once() -> None:
    policy = tiny_policy()
    shapes: list[int] = []
    assert policy.backend.name == "cpu"
    policy.base.register_forward_pre_hook(
        lambda _module, _args, kwargs: shapes.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    with torch.inference_mode():
        SharedDecoder(policy, None, prompts(), 3, 8).start()
    assert shapes == [len({p.token_ids[: n + 1] for p in prompts() for n in range(len(p.token_ids))})]
