from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.policy.packing import MicroBatch, TokenSequence, pack


def sequences_of(micro: MicroBatch) -> dict[int, tuple[list[int], list[int]]]:
    """What a model would see of each sequence: the tokens it may look at from each predicting position, in order."""
    length = micro.input_ids.shape[1]
    causal = torch.ones((length, length), dtype=torch.bool).tril()
    sequences: dict[int, tuple[list[int], list[int]]] = {}
    places = torch.split(micro.gather, list(micro.lengths))
    targets = torch.split(micro.targets, list(micro.lengths))
    for index, place, target in zip(micro.indices, places, targets, strict=True):
        row, last = divmod(int(place[-1]), length)
        seen = (causal if micro.attention_mask is None else micro.attention_mask[row, 0])[last]
        where = seen.nonzero()[:, 0]
        depths = where if micro.position_ids is None else micro.position_ids[row, where]
        order = depths.argsort()
        assert depths[order].tolist() == list(range(len(where)))
        tokens = micro.input_ids[row, where[order]].tolist()
        assert (place - row * length).tolist() == where[order][-len(target) :].tolist()
        sequences[index] = (tokens, target.tolist())
    return sequences


TOKENS = st.lists(st.integers(1, 3), min_size=1, max_size=9).map(tuple)


@settings(deadline=None, max_examples=150)
@given(
    items=st.lists(st.tuples(TOKENS, TOKENS, st.integers(0, 2)), min_size=1, max_size=9),
    tokens=st.integers(1, 60),
    share=st.booleans(),
)
def test_every_sequence_is_packed_once_and_sees_its_own_history_alone(
    items: list[tuple[tuple[int, ...], tuple[int, ...], int]], tokens: int, share: bool
) -> None:
    sequences = [TokenSequence(*item) for item in items]
    seen: dict[int, tuple[list[int], list[int]]] = {}
    for micro in pack(sequences, tokens=tokens, share=share):
        assert micro.input_ids.numel() <= tokens or micro.input_ids.shape[0] == 1
        assert not seen.keys() & set(micro.indices)
        seen |= sequences_of(micro)
    assert seen == {i: (list(s.input_ids), list(s.completion_ids)) for i, s in enumerate(sequences)}


def test_a_shared_prompt_is_computed_once() -> None:
    prompt = tuple(range(10, 60))
    group = [TokenSequence(prompt, (1, 2, i)) for i in (3, 4, 5)] + [TokenSequence(prompt, (7, 8, 9))]
    (micro,) = pack(group, tokens=1000)
    assert micro.input_ids.numel() == 50 + 2 + 2
    apart = pack(group, tokens=1000, share=False)
    assert sum(m.input_ids.numel() for m in apart) == 4 * 52


def test_later_turns_share_the_history_of_earlier_ones() -> None:
    first = TokenSequence((1, 2, 3), (4, 5))
    second = TokenSequence((1, 2, 3, 4, 5, 6, 7), (8, 9))
    (micro,) = pack([first, second], tokens=1000)
    assert micro.input_ids.numel() == len(second.input_ids)


def test_a_budget_splits_a_bundle_and_a_longer_sequence_stands_alone() -> None:
    group = [TokenSequence((1, 2, 3), (10 + i, 5, 6, 7)) for i in range(4)]
    batches = pack(group, tokens=12)
    assert all(m.input_ids.numel() <= 12 for m in batches)
    assert len(batches) == 2
    (huge,) = pack([TokenSequence(tuple(range(40)), (1,))], tokens=8)
    assert huge.input_ids.numel() == 40


def test_padding_never_counts() -> None:
    micro = pack([TokenSequence((1,), (2, 3, 4)), TokenSequence((5,), (6,), prefix_group=1)], tokens=100)[0]
    assert micro.mask().tolist() == [[1, 1, 1], [1, 0, 0]]
    padded = micro.pad(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert padded.tolist() == [[1, 2, 3], [4, 0, 0]]


def test_a_sequence_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="needs context and completion"):
        TokenSequence((), (1,))
    with pytest.raises(ValueError, match="needs context and completion"):
        TokenSequence((1,), ())
    with pytest.raises(ValueError, match="at least one token"):
        pack([], tokens=0)
