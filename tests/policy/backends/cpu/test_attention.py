"""Attention piece by piece against attention under a dense mask."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from levelhead.policy.backends.cpu.attention import Forest, Pieces, attend, fused, merge
from levelhead.policy.packing import Node, trie

SEQUENCES = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=9).map(tuple), min_size=1, max_size=8)
SHARED = [(1, 2, 3, 4, 5), (1, 2, 3, 6), (1, 2, 3, 6, 7, 8), (9,), (1, 2), (9, 1, 1, 1), (9, 2, 2, 2), (1, 2, 3, 4, 5)]


def ancestors(sequences: list[tuple[int, ...]]) -> Tensor:
    """Which token of the forest may look at which, from the sequences' own paths."""
    tokens, _, paths, _ = trie(sequences)
    mask = torch.zeros((len(tokens), len(tokens)), dtype=torch.bool)
    for path in paths:
        for i, position in enumerate(path):
            mask[position, path[: i + 1]] = True
    return mask


def looked_at(pieces: Pieces, length: int) -> Tensor:
    """How often each pair is computed."""
    times = torch.zeros((length, length), dtype=torch.long)
    for start, size, count in pieces.causal:
        for first in range(start, start + size * count, size):
            times[first : first + size, first : first + size] += torch.ones((size, size), dtype=torch.long).tril()
    for a, b, c, d in pieces.full:
        times[a:b, c:d] += 1
    return times


@settings(deadline=None, max_examples=150)
@given(sequences=SEQUENCES)
def test_every_token_of_a_forest_looks_once_at_each_of_its_ancestors_and_at_nothing_else(
    sequences: list[tuple[int, ...]],
) -> None:
    tokens, depths, paths, nodes = trie(sequences)
    for ids, path in zip(sequences, paths, strict=True):
        assert [tokens[i] for i in path] == list(ids)
        assert [depths[i] for i in path] == list(range(len(ids)))
    assert len(tokens) == len({ids[:n] for ids in sequences for n in range(1, len(ids) + 1)})
    assert torch.equal(looked_at(Pieces.of(nodes), len(tokens)), ancestors(sequences).long())


@settings(deadline=None, max_examples=150)
@given(sequences=SEQUENCES, data=st.data())
def test_a_needed_token_keeps_its_ancestors_when_the_rest_is_trimmed(
    sequences: list[tuple[int, ...]], data: st.DataObject
) -> None:
    tokens, _, _, nodes = trie(sequences)
    needed = sorted(data.draw(st.sets(st.integers(0, len(tokens) - 1), min_size=1)))
    starts = [min([i for i in needed if i >= n.start], default=n.stop) for n in sorted(nodes, key=lambda n: n.start)]
    firsts = [min(a, n.stop) for a, n in zip(starts, sorted(nodes, key=lambda n: n.start), strict=True)]
    times = looked_at(Pieces.of(nodes, firsts), len(tokens))
    assert torch.equal(times[needed], ancestors(sequences).long()[needed])


def heads(length: int, dtype: torch.dtype, *, groups: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 2 * groups, length, 16), (1, 2, length, 16), (1, 2, length, 16)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def dense(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(groups, 1).transpose(-1, -2) * scale
    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ value.repeat_interleave(groups, 1)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 2e-5), (torch.bfloat16, 4e-2)], ids=["float32", "bf16"])
@pytest.mark.parametrize("trimmed", [False, True])
def test_values_and_gradients_equal_attention_under_a_mask(dtype: torch.dtype, most: float, trimmed: bool) -> None:
    _, _, paths, nodes = trie(SHARED)
    mask = ancestors(SHARED)
    needed = torch.stack([path[-1] for path in paths]).unique() if trimmed else torch.arange(len(mask))
    forest = Forest(nodes, 2, needed)
    given = heads(len(mask), dtype)
    attended = forest.attend(1, *given, 0.3)[:, :, needed]
    want = dense(*(x.double() for x in given), mask, 0.3)[:, :, needed]
    pull = torch.randn(want.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    grads = torch.autograd.grad((attended.double() * pull).sum(), given)
    wanted = torch.autograd.grad((want * pull).sum(), given)
    for a, b in zip((attended, *grads), (want, *wanted), strict=True):
        assert float((a.detach().double() - b.detach()).norm() / b.detach().norm()) < most


def test_attention_over_two_sets_of_keys_merges_to_attention_over_both() -> None:
    query, key, value = (x.detach() for x in heads(9, torch.float32, groups=1))
    whole, log = fused(query, key, value, 0.2)
    halves = [fused(query, key[:, :, part], value[:, :, part], 0.2) for part in (slice(0, 4), slice(4, 9))]
    merged, merged_log = merge(*halves[0], *halves[1])
    torch.testing.assert_close((merged, merged_log), (whole, log))


def test_nodes_of_one_length_behind_each_other_are_one_piece() -> None:
    nodes = [Node(0, 4, 10), Node(4, 6, 6), Node(6, 8, 8), Node(8, 10, 10)]
    assert Pieces.of(nodes) == Pieces(((0, 4, 1), (4, 2, 3)), ((4, 10, 0, 4),))


def test_no_gradient_flows_between_branches() -> None:
    _, _, paths, nodes = trie([(1, 2, 3), (1, 4, 5)])
    query, key, value = heads(5, torch.float32)
    out = attend(query, key, value, Pieces.of(nodes), 1.0)
    (grad,) = torch.autograd.grad(out[:, :, paths[0]].sum(), value)
    assert float(grad[:, :, paths[1][1:]].abs().max()) == 0.0
    assert float(grad[:, :, paths[0]].abs().min()) > 0.0
