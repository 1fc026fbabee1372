from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from levelhead.errors import PolicyError
from levelhead.policy.backends.cpu.backend import SharedDecoder
from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import Sampling
from levelhead.records import Prompt, Turn
from levelhead.rollout.generators.base import Completion, Generator, Request
from levelhead.rollout.generators.local import LocalGenerator
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


def test_it_is_a_generator(policy: Policy) -> None:
    assert isinstance(LocalGenerator(policy), Generator)


def requests(controls: Sampling, k: int = 3) -> list[Request]:
    return [Request(p, index, controls, 1, i * k + index) for i, p in enumerate(prompts()) for index in range(k)]


async def asked(generator: LocalGenerator, wanted: list[Request]) -> dict[tuple[str, int], Completion]:
    """Ask for completions in this order, a moment apart, as coroutines do whose pages take their time."""

    async def ask(request: Request, wait: int) -> Completion:
        for _ in range(wait):
            await asyncio.sleep(0)
        return await generator.generate(request)

    generator.expect(len(wanted))
    completions = await asyncio.gather(*(ask(request, i) for i, request in enumerate(wanted)))
    await generator.close()
    names = [(request.prompt.id, request.index) for request in wanted]
    return dict(zip(names, completions, strict=True))


def test_what_is_asked_for_one_by_one_is_drawn_as_one_batch_to_the_bit_whoever_asks_first(policy: Policy) -> None:
    controls = Sampling(max_new_tokens=12)
    batch = LocalGenerator(policy).sample(prompts(), 3, controls, seed=1)
    drawn = {(p.id, i): turn for p, turns in zip(prompts(), batch, strict=True) for i, turn in enumerate(turns)}
    for seed in (0, 1):
        order = requests(controls)
        random.Random(seed).shuffle(order)
        completions = asyncio.run(asked(LocalGenerator(policy), order))
        assert {name: completion.turn for name, completion in completions.items()} == drawn


def test_groups_of_other_sizes_and_seeds_are_drawn_apart(policy: Policy) -> None:
    controls, (first, second, *_) = Sampling(max_new_tokens=6), prompts()
    wanted = [Request(first, index, controls, 1, index) for index in (0, 1)]
    wanted.append(Request(second, 0, controls, 2, 2))
    completions = asyncio.run(asked(LocalGenerator(policy), wanted))
    generator = LocalGenerator(policy)
    (pair,) = generator.sample([first], 2, controls, seed=1)
    ((other,),) = generator.sample([second], 1, controls, seed=2)
    assert [completions[name].turn for name in (("p0", 0), ("p0", 1), ("p1", 0))] == [*pair, other]


def test_a_batch_begins_when_all_who_are_left_wait(policy: Policy) -> None:
    async def play() -> tuple[Completion, bool]:
        generator = LocalGenerator(policy)
        generator.expect(2)
        waits = asyncio.ensure_future(generator.generate(requests(Sampling(max_new_tokens=6))[0]))
        await asyncio.sleep(0.1)
        early = waits.done()
        generator.leave()
        completion = await waits
        await generator.close()
        return completion, early

    completion, early = asyncio.run(play())
    assert not early
    assert completion.versions == (0, 0)


@contextmanager
def endless(policy: Policy) -> Iterator[list[int]]:
    """Completions that never end by themselves, slowly."""
    steps: list[int] = []
    step = SharedDecoder.step

    def slow(self: SharedDecoder, tokens: torch.Tensor) -> torch.Tensor:
        steps.append(1)
        time.sleep(0.05)
        return step(self, tokens)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedDecoder, "step", slow)
        patch.setattr(policy.codec, "stop_ids", frozenset())
        yield steps


def test_what_nobody_waits_for_is_given_up_at_its_next_token(policy: Policy) -> None:
    async def play() -> Completion:
        generator = LocalGenerator(policy)
        waits = asyncio.ensure_future(generator.generate(requests(Sampling(max_new_tokens=100))[0]))
        while not steps:
            await asyncio.sleep(0.01)
        waits.cancel()
        await asyncio.wait([waits])
        again = await generator.generate(requests(Sampling(max_new_tokens=1))[0])
        await generator.close()
        return again

    with endless(policy) as steps:
        again = asyncio.run(play())
    assert len(again.turn.completion_ids) == 1
    assert len(steps) < 20


def test_closing_ends_what_is_being_drawn_and_its_thread(policy: Policy) -> None:
    async def play() -> bool:
        generator = LocalGenerator(policy)
        waits = asyncio.ensure_future(generator.generate(requests(Sampling(max_new_tokens=100))[0]))
        while not steps:
            await asyncio.sleep(0.01)
        await generator.close()
        await asyncio.wait([waits])
        return waits.cancelled()

    with endless(policy) as steps:
        assert asyncio.run(play())
    assert len(steps) < 20
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("levelhead-generator")]


def test_what_goes_wrong_reaches_everyone_who_waits() -> None:
    lost = tiny_policy()
    with torch.no_grad():
        lost.parameters[0].fill_(float("nan"))

    async def play() -> list[BaseException | Completion]:
        generator = LocalGenerator(lost)
        generator.expect(3)
        wanted = requests(Sampling(max_new_tokens=4))[:3]
        results = await asyncio.gather(*(generator.generate(r) for r in wanted), return_exceptions=True)
        await generator.close()
        return results

    assert [type(result) for result in asyncio.run(play())] == [PolicyError] * 3


@pytest.mark.parametrize(
    "controls", [Sampling(max_new_tokens=12), Sampling(max_new_tokens=12, temperature=0.7, top_k=40)]
)
def test_a_completion_is_the_same_alone_and_in_any_batch(policy: Policy, controls: Sampling) -> None:
    sampler = LocalGenerator(policy)
    together = sampler.sample(prompts(), 3, controls, seed=1)
    again = LocalGenerator(policy, rows=3).sample(prompts()[::-1], 3, controls, seed=1)[::-1]
    assert [[t.completion_ids for t in turns] for turns in again] == [[t.completion_ids for t in ts] for ts in together]
    alone = [sampler.sample([prompt], 1, controls, seed=1)[0][0] for prompt in prompts()]
    assert [turn.completion_ids for turn in alone] == [turns[0].completion_ids for turns in together]
    for turn, turns in zip(alone, together, strict=True):
        assert turn.logprobs == pytest.approx(turns[0].logprobs, abs=1e-5)


def test_rows_at_once_change_nothing_but_how_many_are_drawn_together(policy: Policy) -> None:
    samples = []
    for rows in (4, 8, 256):
        controls = Sampling(max_new_tokens=12, rows_at_once=rows)
        with counted() as shapes:
            samples.append(LocalGenerator(policy).sample(prompts(), 4, controls, seed=1))
        assert rows / 2 < max(batch for batch, _ in shapes) <= rows or rows > 16
    for groups in samples[1:]:
        for turns, want in zip(groups, samples[0], strict=True):
            assert [turn.completion_ids for turn in turns] == [turn.completion_ids for turn in want]


def test_another_seed_and_another_index_draw_other_tokens(policy: Policy) -> None:
    sampler = LocalGenerator(policy)
    first = sampler.sample(prompts(), 2, Sampling(max_new_tokens=12), seed=1)
    second = sampler.sample(prompts(), 2, Sampling(max_new_tokens=12), seed=2)
    assert all(a[0].completion_ids != b[0].completion_ids for a, b in zip(first, second, strict=True))
    assert all(turns[0].completion_ids != turns[1].completion_ids for turns in first)


def test_a_prompt_is_computed_once_a_group(policy: Policy) -> None:
    policy.backend.decoders(policy)  # compares on tokens of its own, once
    with counted() as shapes:
        LocalGenerator(policy).sample(prompts()[:1], 5, Sampling(max_new_tokens=4, min_new_tokens=3), seed=0)
    assert shapes[0] == (1, 3)
    assert shapes[1:] == [(5, 1)] * 3


def test_finished_rows_leave_the_batch(policy: Policy) -> None:
    with counted() as shapes:
        turns = LocalGenerator(policy).sample(prompts(), 4, Sampling(max_new_tokens=40), seed=3)
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
    turns = LocalGenerator(policy).sample(prompts(), 2, Sampling(max_new_tokens=12, temperature=temperature), seed=5)
    flat = [turn for group in turns for turn in group]
    sequences = [TokenSequence(t.context_ids, t.completion_ids, i // 2) for i, t in enumerate(flat)]
    for micro in policy.pack(sequences, 200):
        recomputed = spread_out(micro, policy.score(micro, temperature or 1.0).logp.detach())
        for index, value in recomputed.items():
            assert value.tolist() == pytest.approx(flat[index].logprobs, abs=2e-5)


def test_truncation_shows_in_the_behaviour_and_not_in_the_policy(policy: Policy) -> None:
    (turns,) = LocalGenerator(policy).sample(prompts()[:1], 4, Sampling(max_new_tokens=8, top_k=2), seed=5)
    pairs = [pair for t in turns for pair in zip(t.logprobs, t.behaviour_logprobs, strict=True)]
    assert all(drawn >= raw - 1e-6 for raw, drawn in pairs)
    assert any(drawn > raw + 0.1 for raw, drawn in pairs)
    (turns,) = LocalGenerator(policy).sample(prompts()[:1], 4, Sampling(max_new_tokens=8), seed=5)
    assert all(turn.logprobs == turn.behaviour_logprobs for turn in turns)


def test_greedy_takes_the_likeliest_token_whatever_the_seed(policy: Policy) -> None:
    sampler = LocalGenerator(policy)
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
    turns = [t for g in LocalGenerator(policy).sample(prompts(), 8, Sampling(max_new_tokens=30), seed=2) for t in g]
    stops = policy.codec.stop_ids
    assert {turn.finish for turn in turns} == {"stop", "length"}
    for turn in turns:
        drawn = [token in stops for token in turn.completion_ids]
        assert not any(drawn[:-1])
        assert drawn[-1] == (turn.finish == "stop")
        assert len(turn.completion_ids) == 30 or turn.finish == "stop"


def test_lengths_stay_between_minimum_and_maximum(policy: Policy) -> None:
    sampler = LocalGenerator(policy)
    controls = Sampling(max_new_tokens=9, min_new_tokens=5)
    turns = [t for g in sampler.sample(prompts(), 8, controls, seed=2) for t in g]
    stops = policy.codec.stop_ids
    lengths = [len(turn.completion_ids) for turn in turns]
    assert min(lengths) >= 6
    assert max(lengths) == 9
    assert not any(token in stops for turn in turns for token in turn.completion_ids[:5])


def test_a_rollout_carries_the_version_that_the_trainer_announced(policy: Policy) -> None:
    generator = LocalGenerator(policy)
    assert generator.version == 0
    policy.version = 7
    try:
        asyncio.run(generator.sync_weights())
        (completion,) = asyncio.run(asked(generator, requests(Sampling(max_new_tokens=1))[:1])).values()
    finally:
        policy.version = 0
    assert (generator.version, completion.versions) == (7, (7, 7))


def test_a_policy_whose_weights_are_lost_says_so() -> None:
    lost = tiny_policy()
    with torch.no_grad():
        lost.parameters[0].fill_(float("nan"))
    with pytest.raises(PolicyError, match="--resume"):
        LocalGenerator(lost).sample(prompts(), 2, Sampling(max_new_tokens=4), 0)
