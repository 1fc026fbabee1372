"""Sampling controls against plain-Python second implementations, and their promises."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from levelhead.recipe.sampling import EvalSampling, Sampling
from levelhead.rollout.logits import LogitsPipeline, draw, forbid_repeats, penalize, truncate

V = 12
STOPS = (1, 2)
NO_HISTORY = torch.zeros(1, 0, dtype=torch.long)


def softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    weights = [math.exp(z - top) for z in logits]
    return [w / sum(weights) for w in weights]


def naive(logits: list[float], history: list[int], c: Sampling, stops: tuple[int, ...]) -> list[float]:
    """The distribution of the draw, written as the definitions read."""
    z = list(logits)
    for token in set(history):
        z[token] = z[token] / c.repetition_penalty if z[token] > 0 else z[token] * c.repetition_penalty
        z[token] -= c.presence_penalty + c.frequency_penalty * history.count(token)
    n = c.no_repeat_ngram
    if n:
        grams = {tuple(history[i : i + n]) for i in range(len(history) - n + 1)}
        suffix = tuple(history[len(history) - n + 1 :])
        banned = [v for v in range(len(z)) if len(history) >= n - 1 and (*suffix, v) in grams]
        if len(banned) < len(z):
            z = [-math.inf if v in banned else x for v, x in enumerate(z)]
    if len(history) < c.min_new_tokens:
        bound = [-math.inf if v in stops else x for v, x in enumerate(z)]
        z = bound if max(bound) > -math.inf else z
    if c.temperature == 0:
        return [float(v == z.index(max(z))) for v in range(len(z))]
    z = [x / c.temperature for x in z]
    if c.top_k:
        least = sorted(z, reverse=True)[: c.top_k][-1]
        z = [x if x >= least else -math.inf for x in z]
    p = softmax(z)
    if c.top_p < 1:
        nucleus, mass = [], 0.0
        for q in sorted(p, reverse=True):
            nucleus.append(q)
            mass += q
            if mass >= c.top_p:
                break
        p = [q if q >= nucleus[-1] else 0.0 for q in p]
    if c.min_p:
        p = [q if q >= c.min_p * max(p) else 0.0 for q in p]
    return [q / sum(p) for q in p]


def random_logits(rows: int, seed: int, vocab: int = V, scale: float | Tensor = 2.0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


controls = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 3, V, 50]),
    top_p=st.sampled_from([1.0, 0.93, 0.51, 0.1]),
    min_p=st.sampled_from([0.0, 0.07, 0.4, 1.0]),
    min_new_tokens=st.integers(0, 6),
    presence_penalty=st.sampled_from([0.0, 0.6, -0.4]),
    frequency_penalty=st.sampled_from([0.0, 0.3, -0.2]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    no_repeat_ngram=st.integers(0, 3),
)
histories = st.lists(st.lists(st.integers(0, V - 1), max_size=7), min_size=1, max_size=4)


def batch(rows: list[list[int]], pad: int) -> tuple[Tensor, Tensor]:
    width = max(len(row) for row in rows)
    history = torch.tensor([row + [pad] * (width - len(row)) for row in rows], dtype=torch.long)
    return history.reshape(len(rows), width), torch.tensor([len(row) for row in rows])


@settings(deadline=None, max_examples=150)
@given(controls, histories, st.integers(0, 10_000), st.sampled_from([0, 5, -1]))
def test_the_pipeline_is_what_the_definitions_say(c: Sampling, rows: list[list[int]], seed: int, pad: int):
    logits = random_logits(len(rows), seed)
    before = logits.clone()
    history, lengths = batch(rows, pad)
    result = LogitsPipeline(c, STOPS, V)(logits, history, lengths)
    assert torch.equal(logits, before), "the model's logits were written to"
    for i, row in enumerate(rows):
        expected = torch.tensor(naive(logits[i].tolist(), row, c, STOPS))
        torch.testing.assert_close(result.behaviour_bv[i].exp(), expected, atol=2e-5, rtol=1e-4)
        at = torch.tensor(softmax([z / (c.temperature or 1.0) for z in logits[i].tolist()]))
        torch.testing.assert_close(result.policy_bv[i].exp(), at, atol=1e-6, rtol=1e-4)


@settings(deadline=None, max_examples=60)
@given(controls, histories, st.integers(0, 10_000))
def test_a_row_gets_in_any_batch_what_it_gets_alone(c: Sampling, rows: list[list[int]], seed: int):
    logits = random_logits(len(rows), seed)
    history, lengths = batch(rows, 0)
    pipeline = LogitsPipeline(c, STOPS, V)
    together = pipeline(logits, history, lengths)
    for i, row in enumerate(rows):
        alone = pipeline(logits[i : i + 1], torch.tensor([row], dtype=torch.long), len(row))
        assert torch.equal(alone.policy_bv[0], together.policy_bv[i])
        assert torch.equal(alone.behaviour_bv[0], together.behaviour_bv[i])


@settings(deadline=None, max_examples=150)
@given(
    controls | st.builds(Sampling, temperature=st.sampled_from([0.7, 1.0]), min_new_tokens=st.sampled_from([0, 2])),
    st.integers(0, 4),
    st.integers(0, 10_000),
)
def test_what_is_drawn_is_drawn_from_the_distribution_and_has_its_log_probabilities(
    c: Sampling, length: int, seed: int
):
    generator = torch.Generator().manual_seed(seed)
    logits, history = random_logits(5, seed), torch.randint(0, V, (5, length), generator=generator)
    before = logits.clone()
    uniform = torch.rand(5, generator=generator, dtype=torch.float64)
    pipeline = LogitsPipeline(c, STOPS, V)
    chance = pipeline(logits, history, length)
    drawn = pipeline.draw(logits, history, length, uniform)
    assert torch.equal(logits, before), "the model's logits were written to"
    likeliest = chance.behaviour_bv.argmax(-1)
    assert torch.equal(drawn.tokens_b, draw(chance.behaviour_bv.exp(), uniform) if c.temperature else likeliest)
    index = drawn.tokens_b[:, None]
    torch.testing.assert_close(drawn.policy_b, chance.policy_bv.gather(1, index)[:, 0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(drawn.behaviour_b, chance.behaviour_bv.gather(1, index)[:, 0], atol=1e-5, rtol=1e-5)


def test_stop_tokens_that_hold_nearly_all_mass_are_suppressed_from_the_logits():
    logits = random_logits(2, 0).index_fill(1, torch.tensor(STOPS), 40.0)
    uniform = torch.tensor([0.2, 0.9], dtype=torch.float64)
    drawn = LogitsPipeline(Sampling(min_new_tokens=1), STOPS, V).draw(logits, logits.long()[:, :0], 0, uniform)
    left = torch.log_softmax(logits.index_fill(1, torch.tensor(STOPS), -torch.inf), -1)
    torch.testing.assert_close(drawn.behaviour_b, left.gather(1, drawn.tokens_b[:, None])[:, 0])


def test_without_controls_the_two_distributions_are_one_tensor():
    for temperature in (1.0, 0.7):
        pipeline = LogitsPipeline(Sampling(temperature=temperature), STOPS, V)
        result = pipeline(random_logits(3, 0), torch.zeros(3, 4, dtype=torch.long), 4)
        assert result.behaviour_bv is result.policy_bv


def test_controls_that_cannot_act_count_as_none():
    c = Sampling(top_k=V, top_p=1.0, min_new_tokens=3)
    result = LogitsPipeline(c, STOPS, V)(random_logits(2, 0), torch.zeros(2, 3, dtype=torch.long), 3)
    assert result.behaviour_bv is result.policy_bv


def test_policy_logprobs_know_nothing_of_penalties_and_truncation():
    logits = random_logits(2, 3)
    history = torch.tensor([[4, 4, 5], [6, 7, 8]])
    c = Sampling(temperature=0.8, top_k=3, presence_penalty=1.0, frequency_penalty=1.0, repetition_penalty=1.5)
    result = LogitsPipeline(c, STOPS, V)(logits, history, 3)
    torch.testing.assert_close(result.policy_bv, torch.log_softmax(logits / 0.8, -1))
    assert not torch.equal(result.behaviour_bv, result.policy_bv)


def test_greedy_puts_all_mass_on_the_likeliest_token():
    logits = random_logits(4, 1)
    result = LogitsPipeline(EvalSampling(), STOPS, V)(logits, torch.zeros(4, 0, dtype=torch.long), 0)
    assert torch.equal(result.behaviour_bv.exp().argmax(-1), logits.argmax(-1))
    assert torch.equal(result.behaviour_bv.exp().sum(-1), torch.ones(4))
    torch.testing.assert_close(result.policy_bv, torch.log_softmax(logits, -1))


def test_penalties_by_hand():
    logits = torch.tensor([[2.0, -1.0, 0.5, 3.0]])
    history = torch.tensor([[0, 1, 0]])
    got = penalize(logits, history, torch.tensor([3]), presence=0.5, frequency=0.25, repetition=2.0)
    assert got.tolist() == [[2.0 / 2 - 0.5 - 2 * 0.25, -1.0 * 2 - 0.5 - 0.25, 0.5, 3.0]]


def test_an_empty_completion_is_not_penalised_at_all():
    logits = random_logits(2, 5)
    history, lengths = batch([[], [3]], pad=0)
    got = penalize(logits, history, lengths, presence=1.0, frequency=1.0, repetition=2.0)
    assert torch.equal(got[0], logits[0])
    assert torch.equal(got[1, :3], logits[1, :3])


def test_no_prompt_moves_the_stop_tokens_logit():
    # Penalties that counted the prompt would lower every token but the stop token, which no prompt contains.
    logits = random_logits(1, 2)
    c = Sampling(presence_penalty=2.0, frequency_penalty=2.0, repetition_penalty=3.0, no_repeat_ngram=2)
    result = LogitsPipeline(c, STOPS, V)(logits, NO_HISTORY, 0)
    torch.testing.assert_close(result.behaviour_bv, result.policy_bv)
    later = LogitsPipeline(c, STOPS, V)(logits, torch.tensor([[5, 6, 7]]), 3)
    shift = later.behaviour_bv - torch.log_softmax(logits, -1)
    untouched = shift[0, [0, *STOPS, 3, 4, 8]]
    torch.testing.assert_close(untouched, untouched[:1].expand(6))


def test_no_repeat_ngram_by_hand():
    logits = torch.zeros(1, V)
    history = torch.tensor([[3, 4, 5, 3, 4]])
    banned = forbid_repeats(logits, history, torch.tensor([5]), 3).isneginf().nonzero()[:, 1]
    assert banned.tolist() == [5]
    banned = forbid_repeats(logits, history, torch.tensor([5]), 2).isneginf().nonzero()[:, 1]
    assert banned.tolist() == [5]
    banned = forbid_repeats(logits, history, torch.tensor([5]), 1).isneginf().nonzero()[:, 1]
    assert banned.tolist() == [3, 4, 5]


def test_a_ban_that_would_leave_nothing_is_lifted():
    history = torch.arange(V)[None]
    result = LogitsPipeline(Sampling(no_repeat_ngram=1), STOPS, V)(random_logits(1, 0), history, V)
    assert result.behaviour_bv.isfinite().all()
    rest = torch.tensor([[v for v in range(V) if v not in STOPS]])
    c = Sampling(no_repeat_ngram=1, min_new_tokens=30)
    result = LogitsPipeline(c, STOPS, V)(random_logits(1, 0), rest, V - 2)
    assert result.behaviour_bv[0].exp().nonzero()[:, 0].tolist() == list(STOPS)


def test_minimum_length_forbids_stops_of_rows_below_it_alone():
    logits = random_logits(2, 4)
    history = torch.tensor([[5, 6, 7], [5, 0, 0]])
    c = Sampling(min_new_tokens=3, temperature=0.9, top_p=0.9)
    free = LogitsPipeline(c.model_copy(update={"min_new_tokens": 0}), STOPS, V)(logits, history, 3)
    result = LogitsPipeline(c, STOPS, V)(logits, history, torch.tensor([3, 1]))
    assert torch.equal(result.behaviour_bv[0], free.behaviour_bv[0])
    assert result.behaviour_bv[1, list(STOPS)].isneginf().all()
    assert (free.behaviour_bv[1, list(STOPS)].exp() > 0).any()


def test_a_nucleus_wider_than_the_first_guess_is_found():
    logits = random_logits(3, 7, vocab=2000, scale=torch.tensor([[0.1], [6.0], [1.0]]))
    survivors = truncate(logits, top_p=0.9).isfinite()
    for i in range(3):
        p = logits[i].softmax(-1).sort(descending=True).values.double()
        width = int((p.cumsum(0) < 0.9).sum()) + 1
        assert survivors[i].sum().item() == pytest.approx(width, abs=1)
    assert survivors[0].sum() > 1000
    assert survivors[1].sum() < 100
    alone = truncate(logits[1:2], top_p=0.9).isfinite()
    assert torch.equal(alone[0], survivors[1])


def test_ties_stay_together():
    logits = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    assert truncate(logits, top_k=1).isfinite().tolist() == [[True, True, True, False]]
    assert truncate(logits, top_p=0.2).isfinite().tolist() == [[True, True, True, False]]


@pytest.mark.parametrize("rule", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_the_strictest_truncation_keeps_the_likeliest_token_alone(rule: dict[str, float]):
    logits = random_logits(5, 11)
    survivors = truncate(logits, **rule).isfinite()
    assert torch.equal(survivors.int().argmax(-1), logits.argmax(-1))
    assert survivors.sum() == 5


def test_draws_follow_the_distribution():
    logprobs = torch.log_softmax(random_logits(1, 13), -1)
    uniform = (torch.arange(40_000, dtype=torch.float64) + 0.5) / 40_000
    tokens = draw(logprobs.exp().expand(40_000, V), uniform)
    shares = torch.bincount(tokens, minlength=V) / 40_000
    torch.testing.assert_close(shares, logprobs[0].exp(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("vocab", [511, 512, 513, 3000])
def test_drawing_by_blocks_is_inverting_the_whole_cumulative_sum(vocab: int):
    logprobs = torch.log_softmax(random_logits(1, vocab, vocab=vocab), -1).expand(2000, vocab)
    uniform = torch.rand(2000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    cdf = logprobs[0].exp().double().cumsum(0)
    expected = torch.searchsorted(cdf, uniform * cdf[-1], right=True)
    assert torch.equal(draw(logprobs.exp(), uniform), expected)


def test_a_token_without_mass_is_never_drawn_even_at_the_ends():
    logprobs = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).log()
    uniform = torch.tensor([0.0, 0.5 - 1e-12, 0.5, 1 - 1e-16, 1.0], dtype=torch.float64)
    assert draw(logprobs.exp().expand(5, 5), uniform).tolist() == [1, 1, 3, 3, 3]


def test_half_precision_logits_are_computed_in_float32():
    logits = random_logits(2, 0).bfloat16()
    result = LogitsPipeline(Sampling(top_k=3), STOPS, V)(logits, torch.zeros(2, 0, dtype=torch.long), 0)
    assert result.policy_bv.dtype == result.behaviour_bv.dtype == torch.float32


def test_stop_ids_must_fit_the_vocabulary():
    with pytest.raises(ValueError, match="do not fit"):
        LogitsPipeline(Sampling(), [V], V)
    with pytest.raises(ValueError, match="every one"):
        LogitsPipeline(Sampling(), range(V), V)
