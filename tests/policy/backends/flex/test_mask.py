"""The mask of a forest, block by block, against the ancestors that each token's own path gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._python_dispatch import TorchDispatchMode

from levelhead.policy.backends.flex.attention import Masks, bucket
from levelhead.policy.packing import Node, trie

SEQUENCES = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=12).map(tuple), min_size=1, max_size=10)


def ancestors(sequences: list[tuple[int, ...]], window: int | None) -> Tensor:
    """Which token of the forest may look at which, from the sequences' own paths."""
    tokens, _, paths, _ = trie(sequences)
    mask = torch.zeros((len(tokens), len(tokens)), dtype=torch.bool)
    for path in paths:
        for i, position in enumerate(path):
            first = 0 if window is None else max(0, i + 1 - window)
            mask[position, path[first : i + 1]] = True
    return mask


def blocks(count: Tensor, numbers: Tensor) -> Tensor:
    """(n, n) how often each block is listed."""
    times = torch.zeros(numbers.shape[-2:], dtype=torch.long)
    for row in range(numbers.shape[-2]):
        for column in numbers[0, 0, row, : int(count[0, 0, row])].tolist():
            times[row, column] += 1
    return times


def pairs(mask: BlockMask) -> Tensor:
    """(t, t) what the rule for single pairs says."""
    zero, each = torch.tensor(0), torch.arange(mask.shape[-1])
    return mask.mask_mod(zero, zero, each[:, None], each[None])


def widened(of_blocks: Tensor, size: int) -> Tensor:
    return of_blocks.repeat_interleave(size, 0).repeat_interleave(size, 1)


@settings(deadline=None, max_examples=80)
@given(sequences=SEQUENCES, window=st.sampled_from([None, None, 1, 3]), size=st.sampled_from([2, 4, 8]))
def test_every_token_looks_at_its_ancestors_alone_and_no_block_is_skipped_or_filled_that_must_not_be(
    sequences: list[tuple[int, ...]], window: int | None, size: int
) -> None:
    _, depths, _, nodes = trie(sequences)
    mask = Masks(nodes, torch.tensor(depths), [window], size).of(0)
    want = torch.eye(mask.shape[-1], dtype=torch.bool)
    want[: len(depths), : len(depths)] = ancestors(sequences, window)
    assert torch.equal(pairs(mask), want)
    assert mask.full_kv_num_blocks is not None
    assert mask.full_kv_indices is not None
    partial = blocks(mask.kv_num_blocks, mask.kv_indices)
    full = blocks(mask.full_kv_num_blocks, mask.full_kv_indices)
    assert int((partial + full).max()) == 1
    assert bool(want[widened(full, size) > 0].all())
    assert not bool(want[widened(partial + full, size) == 0].any())
    assert mask.q_num_blocks is not None
    assert mask.q_indices is not None
    assert torch.equal(blocks(mask.q_num_blocks, mask.q_indices), partial.T)
    assert mask.full_q_num_blocks is not None
    assert mask.full_q_indices is not None
    assert torch.equal(blocks(mask.full_q_num_blocks, mask.full_q_indices), full.T)
    if window is None:
        holds = want.view(len(full), size, len(full), size).transpose(1, 2).flatten(2)
        assert torch.equal(full > 0, holds.all(2))
        assert torch.equal(partial > 0, holds.any(2) & ~holds.all(2))


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operator gives."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(each, Tensor):
                self.elements = max(self.elements, each.untyped_storage().nbytes() // each.element_size())
        return out


@pytest.mark.parametrize("window", [None, 4096])
def test_no_matrix_of_pairs_is_made_for_a_row_of_32768_tokens(window: int | None) -> None:
    length, prompt, answer = 32_768, 1024, 384
    nodes: list[Node] = []
    depths: list[int] = []
    while len(depths) + prompt + 8 * answer <= length:
        start = len(depths)
        nodes.append(Node(start, start + prompt, start + prompt + 8 * answer))
        firsts = range(start + prompt, start + prompt + 8 * answer, answer)
        nodes += [Node(first, first + answer, first + answer) for first in firsts]
        depths += [*range(prompt), *[prompt + i for _ in range(8) for i in range(answer)]]
    with Largest() as largest:
        mask = Masks(nodes, torch.tensor(depths), [window]).of(0)
    assert mask.shape == (1, 1, length, length)
    assert largest.elements <= max(length, (length // 128) ** 2)
    held = [getattr(mask, name) for name in BlockMask._TENSOR_ATTRS if getattr(mask, name) is not None]
    assert sum(x.numel() * x.element_size() for x in held) < 1.1 * 4 * 4 * (length // 128) ** 2


def test_lengths_fall_into_two_buckets_an_octave() -> None:
    buckets = sorted({bucket(n) for n in range(1, 4097)})
    assert buckets == [128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096]
    assert all(n <= bucket(n) and bucket(n) % 128 == 0 for n in range(1, 4097))


def test_layers_of_one_window_share_a_mask() -> None:
    _, depths, _, nodes = trie([(1, 2, 3), (1, 2, 4)])
    masks = Masks(nodes, torch.tensor(depths), [None, 2, None, 2])
    assert masks.of(0) is masks.of(2)
    assert masks.of(1) is masks.of(3)
    assert masks.of(0) is not masks.of(1)
