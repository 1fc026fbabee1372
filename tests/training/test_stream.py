from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.errors import InputError
from levelhead.records import Prompt, Score
from levelhead.tasks.base import SingleTurnTask, Split
from levelhead.training.stream import PromptStream


class Numbers(SingleTurnTask):
    def __init__(self, name: str, n: int) -> None:
        self.name, self.n = name, n

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        for i in np.random.default_rng(seed).permutation(self.n):
            yield Prompt(str(i), self.name, ())

    def score(self, prompt: Prompt, text: str) -> Score:
        return Score(0.0)


def stream(*sizes: int, weights: list[float] | None = None, seed: int = 0) -> PromptStream:
    tasks = [Numbers(f"task{i}", n) for i, n in enumerate(sizes)]
    return PromptStream(tasks, weights or [1.0] * len(sizes), seed)


@settings(deadline=None, max_examples=60)
@given(weights=st.lists(st.floats(0.1, 10), min_size=1, max_size=4), n=st.integers(1, 60))
def test_every_task_has_its_share_within_one_prompt(weights: list[float], n: int) -> None:
    counts = Counter(p.task for p in stream(*[7] * len(weights), weights=weights).take(n))
    for i, weight in enumerate(weights):
        assert abs(counts[f"task{i}"] - n * weight / sum(weights)) <= max(1, len(weights) - 1)


@settings(deadline=None, max_examples=60)
@given(cuts=st.lists(st.integers(1, 9), min_size=1, max_size=6), seed=st.integers(0, 5))
def test_a_resumed_stream_goes_on_as_if_it_had_never_stopped(cuts: list[int], seed: int) -> None:
    whole = stream(5, 3, weights=[2.0, 1.0], seed=seed).take(sum(cuts))
    pieces: list[Prompt] = []
    state = None
    for cut in cuts:
        part = stream(5, 3, weights=[2.0, 1.0], seed=seed)
        if state is not None:
            part.load_state_dict(state)
        pieces += part.take(cut)
        state = part.state_dict()
    assert pieces == whole


def test_every_epoch_holds_every_prompt_once_in_a_new_order() -> None:
    ids = [p.id for p in stream(12).take(36)]
    epochs = [ids[i : i + 12] for i in (0, 12, 24)]
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert all(a != b for a, b in pairwise(epochs))


def test_another_seed_gives_another_order() -> None:
    assert stream(12, seed=0).take(12) != stream(12, seed=1).take(12)


def test_a_task_without_prompts_is_named() -> None:
    with pytest.raises(InputError, match="'task0' has no training prompts"):
        stream(0).take(1)
