from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from levelhead.errors import PolicyError
from levelhead.policy.backends.cpu.decoder import SharedDecoder
from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import Sampling
from levelhead.records import Prompt, Turn
from levelhead.rollout.base import Sampler
from levelhead.rollout.inprocess import InProcessSampler
from small_run import codec_ids, spread_out, tiny_policy


@pytest.fixture(scope="module")
def policy() -> Policy:
    """A policy that ends about every eighth token, so that rows finish at different times."""
    policy = tiny_policy()
    policy.codec.stop_ids = frozenset(codec_ids()[::8])
    return policy


def prompts() -> list[Prompt]:
    ids = codec_ids()
    lengths = (3, 9, 5, 14)
    return [Prompt(f"p{i}", "task", (), ids[10 * i : 10 * i + n]) for i, n in enumerate(lengths)]


@contextmanager
def counted() -> Iterator[list[tuple[int, int]]]:
    """Shapes of the token tensors that pass through the model."""
    shapes: list[tuple[int, int]] = []
    forward = SharedDecoder._forward

    def noted(self: SharedDecoder, ids: torch.Tensor, *others: Any) -> torch.Tensor:
        shapes.append((ids.shape[0], ids.shape[1]))
        return forward(self, ids, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedDecoder, "_forward", noted)
        yield shapes


def stops_sooner(policy: Policy, turns: list[Turn]) -> bool:
    return all((turn.completion_ids[-1] in policy.codec.stop_ids) == (turn.finish == "stop") for turn in turns)


def test_it_is_a_sampler(policy: Policy) -> None:
    assert isinstance(InProcessSampler(policy), Sampler)


@pytest.mark.parametrize(
    "controls", [Sampling(max_new_tokens=12), Sampling(max_new_tokens=12, temperature=0.7, top_k=40)]
)
def test_a_completion_is_the_same_alone_and_in_any_batch(policy: Policy, controls: Sampling) -> None:
    sampler = InProcessSampler(policy)
    together = sampler.sample(prompts(), 3, controls, seed=1)
    again = InProcessSampler(policy, rows=3).sample(prompts()[::-1], 3, controls, seed=1)[::-1]
    assert [[t.completion_ids for t in turns] for turns in again] == [[t.completion_ids for t in ts] for ts in together]
    alone = [sampler.sample([prompt], 1, controls, seed=1)[0][0] for prompt in prompts()]
    assert [turn.completion_ids for turn in alone] == [turns[0].completion_ids for turns in together]
    for turn, turns in zip(alone, together, strict=True):
        assert turn.logprobs == pytest.approx(turns[0].logprobs, abs=1e-5)


def test_rows_at_once_change_nothing_but_how_many_are_drawn_together(policy: Policy) -> None:
    found = []
    for rows in (4, 8, 256):
        controls = Sampling(max_new_tokens=12, rows_at_once=rows)
        with counted() as shapes:
            found.append(InProcessSampler(policy).sample(prompts(), 4, controls, seed=1))
        assert rows / 2 < max(batch for batch, _ in shapes) <= rows or rows > 16
    for groups in found[1:]:
        for turns, want in zip(groups, found[0], strict=True):
            assert [turn.completion_ids for turn in turns] == [turn.completion_ids for turn in want]


def test_another_seed_and_another_index_draw_other_tokens(policy: Policy) -> None:
    sampler = InProcessSampler(policy)
    first = sampler.sample(prompts(), 2, Sampling(max_new_tokens=12), seed=1)
    second = sampler.sample(prompts(), 2, Sampling(max_new_tokens=12), seed=2)
    assert all(a[0].completion_ids != b[0].completion_ids for a, b in zip(first, second, strict=True))
    assert all(turns[0].completion_ids != turns[1].completion_ids for turns in first)


def test_a_prompt_is_computed_once_a_group(policy: Policy) -> None:
    policy.backend.decoders(policy)  # compares on tokens of its own, once
    with counted() as shapes:
        InProcessSampler(policy).sample(prompts()[:1], 5, Sampling(max_new_tokens=4, min_new_tokens=3), seed=0)
    assert shapes[0] == (1, 3)
    assert shapes[1:] == [(5, 1)] * 3


def test_finished_rows_leave_the_batch(policy: Policy) -> None:
    with counted() as shapes:
        turns = InProcessSampler(policy).sample(prompts(), 4, Sampling(max_new_tokens=40), seed=3)
    lengths = sorted(len(turn.completion_ids) for group in turns for turn in group)
    assert lengths[0] < lengths[-1]
    rows = [shape[0] for shape in shapes[1:]]
    assert rows == sorted(rows, reverse=True)
    assert rows[-1] < rows[0]
    assert len(rows) == lengths[-1] - 1
    for done, computed in enumerate(rows, start=1):
        alive = sum(length > done for length in lengths)
        assert alive <= computed <= alive + max(1, 0.125 * rows[0]) + 1


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_recorded_log_probabilities_are_those_that_the_trainer_computes(policy: Policy, temperature: float) -> None:
    turns = InProcessSampler(policy).sample(prompts(), 2, Sampling(max_new_tokens=12, temperature=temperature), seed=5)
    flat = [turn for group in turns for turn in group]
    sequences = [TokenSequence(t.context_ids, t.completion_ids, i // 2) for i, t in enumerate(flat)]
    for micro in policy.pack(sequences, 200):
        found = spread_out(micro, policy.score(micro, temperature or 1.0).logp.detach())
        for index, value in found.items():
            assert value.tolist() == pytest.approx(flat[index].logprobs, abs=2e-5)


def test_truncation_shows_in_the_behaviour_and_not_in_the_policy(policy: Policy) -> None:
    (turns,) = InProcessSampler(policy).sample(prompts()[:1], 4, Sampling(max_new_tokens=8, top_k=2), seed=5)
    pairs = [pair for t in turns for pair in zip(t.logprobs, t.behaviour_logprobs, strict=True)]
    assert all(drawn >= raw - 1e-6 for raw, drawn in pairs)
    assert any(drawn > raw + 0.1 for raw, drawn in pairs)
    (turns,) = InProcessSampler(policy).sample(prompts()[:1], 4, Sampling(max_new_tokens=8), seed=5)
    assert all(turn.logprobs == turn.behaviour_logprobs for turn in turns)


def test_greedy_takes_the_likeliest_token_whatever_the_seed(policy: Policy) -> None:
    sampler = InProcessSampler(policy)
    controls = Sampling(max_new_tokens=6, temperature=0.0)
    ((turn, other),) = sampler.sample(prompts()[:1], 2, controls, seed=0)
    ((third,),) = sampler.sample(prompts()[:1], 1, controls, seed=9)
    assert turn.completion_ids == other.completion_ids == third.completion_ids
    ids = list(turn.context_ids)
    for token in turn.completion_ids:
        with torch.no_grad():
            assert int(policy.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()) == token
        ids.append(token)


def test_a_stop_token_ends_a_completion_and_is_its_last(policy: Policy) -> None:
    turns = [t for g in InProcessSampler(policy).sample(prompts(), 8, Sampling(max_new_tokens=30), seed=2) for t in g]
    stops = policy.codec.stop_ids
    assert {turn.finish for turn in turns} == {"stop", "length"}
    for turn in turns:
        drawn = [token in stops for token in turn.completion_ids]
        assert not any(drawn[:-1])
        assert drawn[-1] == (turn.finish == "stop")
        assert len(turn.completion_ids) == 30 or turn.finish == "stop"


def test_lengths_stay_between_minimum_and_maximum(policy: Policy) -> None:
    sampler = InProcessSampler(policy)
    controls = Sampling(max_new_tokens=9, min_new_tokens=5)
    turns = [t for g in sampler.sample(prompts(), 8, controls, seed=2) for t in g]
    stops = policy.codec.stop_ids
    lengths = [len(turn.completion_ids) for turn in turns]
    assert min(lengths) >= 6
    assert max(lengths) == 9
    assert not any(token in stops for turn in turns for token in turn.completion_ids[:5])
    assert sampler.suppressed > 0
    sampler.sample(prompts(), 8, Sampling(max_new_tokens=9), seed=2)
    assert sampler.suppressed == 0


def test_a_rollout_carries_the_version_that_the_trainer_announced(policy: Policy) -> None:
    sampler = InProcessSampler(policy)
    assert sampler.version == 0
    sampler.sync(policy, 7)
    assert sampler.version == 7


def test_a_policy_whose_weights_are_lost_says_so() -> None:
    lost = tiny_policy()
    with torch.no_grad():
        lost.parameters[0].fill_(float("nan"))
    with pytest.raises(PolicyError, match="--resume"):
        InProcessSampler(lost).sample(prompts(), 2, Sampling(max_new_tokens=4), 0)
