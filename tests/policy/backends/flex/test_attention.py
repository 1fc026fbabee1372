"""Attention block by block against attention under a dense mask, and against torch's own kernel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from levelhead.policy.backends.flex.attention import Masks, Trees, by_blocks, compiled, fused
from levelhead.policy.packing import trie

SHARED = [(1, 2, 3, 4, 5), (1, 2, 3, 6), (1, 2, 3, 6, 7, 8), (9,), (1, 2), (9, 1, 1, 1), (9, 2, 2, 2), (1, 2, 3, 4, 5)]
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


def ancestors(window: int | None) -> Tensor:
    tokens, _, paths, _ = trie(SHARED)
    mask = torch.zeros((len(tokens), len(tokens)), dtype=torch.bool)
    for path in paths:
        for i, position in enumerate(path):
            mask[position, path[0 if window is None else max(0, i + 1 - window) : i + 1]] = True
    return mask


def heads(length: int, dtype: torch.dtype, *, grad: bool = True) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 6, length, 16), (1, 2, length, 16), (1, 2, length, 16)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad) for shape in shapes]


def dense(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(groups, 1).transpose(-1, -2) * scale
    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ value.repeat_interleave(groups, 1)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("block", [4, 128])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 2e-6), (torch.bfloat16, 4e-2)], ids=["float32", "bf16"])
def test_values_and_gradients_equal_attention_under_a_mask(
    dtype: torch.dtype, most: float, block: int, window: int | None
) -> None:
    _, depths, _, nodes = trie(SHARED)
    given = heads(len(depths), dtype)
    attended = Trees(Masks(nodes, torch.tensor(depths), [window], block), by_blocks).attend(0, *given, 0.3)
    assert attended.dtype == dtype
    want = dense(*(x.double() for x in given), ancestors(window), 0.3)
    pull = torch.randn(want.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    grads = torch.autograd.grad((attended.double() * pull).sum(), given)
    wanted = torch.autograd.grad((want * pull).sum(), given)
    for a, b in zip((attended, *grads), (want, *wanted), strict=True):
        assert float((a.detach().double() - b.detach()).norm() / b.detach().norm()) < most


def test_sums_are_float32_though_autocast_is_on() -> None:
    _, depths, _, nodes = trie(SHARED)
    given = heads(len(depths), torch.bfloat16, grad=False)
    masks = Masks(nodes, torch.tensor(depths), [None])
    plain = Trees(masks, by_blocks).attend(0, *given, 0.3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(Trees(masks, by_blocks).attend(0, *given, 0.3), plain)


@pytest.mark.parametrize("window", [None, 3])
def test_torch_s_kernel_takes_the_same_mask_and_gives_the_same(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)  # its reference, without a compiler
    _, depths, _, nodes = trie(SHARED)
    mask = Masks(nodes, torch.tensor(depths), [window]).of(0)
    given = heads(128, torch.float32, grad=False)
    attended = fused(torch_flex.flex_attention, *given, mask, 0.3)
    torch.testing.assert_close(attended, by_blocks(*given, mask, 0.3), rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)], ids=["float32", "bf16"])
def test_the_compiled_kernel_gives_the_same_values_and_gradients(
    dtype: torch.dtype, most: float, window: int | None
) -> None:
    _, depths, _, nodes = trie([tuple(s * 20) for s in SHARED])
    mask = Masks(nodes, torch.tensor(depths).cuda(), [window]).of(0)
    sides: list[list[Tensor]] = []
    for attend in (compiled(), by_blocks):
        given = [x.detach().cuda().requires_grad_() for x in heads(mask.shape[-1], dtype)]
        out = attend(*given, mask, 0.3)
        pull = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
        sides.append([out.detach(), *torch.autograd.grad(out, given, pull)])
    for a, b in zip(*sides, strict=True):
        assert float((a.float() - b.float()).norm() / b.float().norm()) < most


@pytest.mark.gpu
@gpu
def test_a_bucket_is_compiled_once_whatever_its_trees() -> None:
    from torch._dynamo.utils import counters

    def graphs(length: int) -> int:
        for shift in range(3):
            _, depths, _, nodes = trie([(1, 2, shift, *range(length)), (1, 2 + shift, 3)])
            given = [x.detach().cuda().requires_grad_() for x in heads(len(depths), torch.bfloat16)]
            trees = Trees(Masks(nodes, torch.tensor(depths).cuda(), [None]), compiled())
            trees.attend(0, *given, 0.3).sum().backward()
        return int(counters["stats"]["unique_graphs"])

    first = graphs(90)
    assert graphs(100) == first
    assert graphs(200) == first + 1


@pytest.mark.gpu
@gpu
def test_memory_on_a_gpu_grows_with_the_tokens_and_not_with_their_square() -> None:
    peaks: list[int] = []
    for length in (8192, 32_768):
        _, depths, _, nodes = trie([(i, *range(1, 1024)) for i in range(length // 1024)])
        given = [x.detach().cuda().requires_grad_() for x in heads(length, torch.bfloat16)]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        Trees(Masks(nodes, torch.tensor(depths).cuda(), [None]), compiled()).attend(0, *given, 0.3).sum().backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] < 5 * peaks[0]
