"""Reward shaping: hand numbers, order, state, and that it never makes contrast out of none."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.objective import advantages
from levelhead.objective.shaping import (
    GroupRelative,
    Overlong,
    PerToken,
    RewardBatch,
    RewardShaping,
    RunningMoments,
    Shaper,
    ZScore,
    winsorise,
)

FIXTURES = Path(__file__).parent / "fixtures"
REWARDS = np.array([[1.0, 0.0, 0.0, 1.0]])
LENGTHS = np.array([[10.0, 20.0, 30.0, 20.0]])


def test_the_default_changes_nothing():
    shaped, state = RewardShaping()(RewardBatch(REWARDS))
    assert shaped is REWARDS
    assert state == {}


def test_scale_comes_before_clip():
    shaped, _ = RewardShaping(scale=3.0, clip=(-1.0, 2.0))(RewardBatch(np.array([[1.0, -1.0]])))
    assert shaped.tolist() == [[2.0, -1.0]]


def test_overlong_is_what_trl_computes():
    recorded = json.loads((FIXTURES / "advantages_trl.json").read_text())["overlong"]
    penalty = Overlong(max_length=recorded["max_length"], cache=recorded["cache"])
    lengths = np.array([recorded["lengths"]], dtype=float)
    assert penalty.addition(np.zeros_like(lengths), lengths)[0] == pytest.approx(recorded["values"])


def test_overlong_without_a_cache_is_a_step():
    penalty = Overlong(max_length=20, cache=0, coef=0.5)
    assert penalty.addition(REWARDS, LENGTHS).tolist() == [[0.0, 0.0, -0.5, 0.0]]


def test_per_token_charges_by_length():
    assert PerToken(coef=0.3, max_length=30).addition(REWARDS, LENGTHS)[0] == pytest.approx([-0.1, -0.2, -0.3, -0.2])


def test_group_relative_pays_short_solutions_and_never_short_failures():
    lengths = np.array([[10.0, 10.0, 30.0, 30.0]])
    assert GroupRelative().addition(REWARDS, lengths).tolist() == [[0.5, 0.0, -0.5, -0.5]]


def test_group_relative_is_silent_where_lengths_are_equal():
    assert not GroupRelative().addition(REWARDS, np.full((1, 4), 7.0)).any()


def test_winsorising_pulls_the_tails_in_to_the_next_value():
    values = np.array([100.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, -50.0])
    assert sorted(winsorise(values, tail=0.1)) == [1.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 8.0]
    assert winsorise(values, tail=0.05).tolist() == values.tolist()


def test_the_first_batch_is_scored_by_its_own_moments():
    zscore = ZScore(decay=0.9, tail=0.0, limit=None, eps=0.0)
    state = zscore.update(RunningMoments(), REWARDS * 4 + 3)
    assert (state.mean, state.variance) == pytest.approx((5.0, 4.0))
    assert zscore.apply(state, REWARDS * 4 + 3)[0] == pytest.approx([1.0, -1.0, -1.0, 1.0])


def test_running_moments_are_exponentially_weighted():
    zscore = ZScore(decay=0.5, tail=0.0, eps=0.0)
    state = zscore.update(zscore.update(RunningMoments(), [[0.0, 2.0]]), [[6.0, 6.0]])
    weights = np.array([0.25, 0.25, 0.5, 0.5]) / 1.5
    values = np.array([0.0, 2.0, 6.0, 6.0])
    mean = (weights * values).sum()
    assert state.mean == pytest.approx(mean)
    assert state.variance == pytest.approx((weights * (values - mean) ** 2).sum())
    assert state.weight == pytest.approx(0.75)


def test_an_outlier_moves_neither_the_statistics_nor_past_the_limit():
    calm = np.random.default_rng(0).normal(size=(10, 20))
    wild = calm.copy()
    wild[0, 0] = 1e6
    zscore = ZScore(tail=0.01, limit=5.0)
    before, after = (zscore.update(RunningMoments(), rewards) for rewards in (calm, wild))
    assert after.mean == pytest.approx(before.mean, abs=0.02)
    assert after.variance == pytest.approx(before.variance, rel=0.05)
    assert zscore.apply(after, wild).max() == 5.0


def test_large_means_lose_no_variance():
    zscore = ZScore(decay=0.9, tail=0.0)
    state = RunningMoments()
    for seed in range(50):
        state = zscore.update(state, 1e8 + np.random.default_rng(seed).normal(size=(8, 8)))
    assert state.variance == pytest.approx(1.0, rel=0.2)


def test_constant_rewards_are_scored_zero_and_never_nan():
    zscore = ZScore(eps=0.0)
    rewards = np.full((2, 4), 0.5)
    state = zscore.update(RunningMoments(), rewards)
    assert not zscore.apply(state, rewards).any()


def test_a_saved_state_goes_on_as_if_never_stopped():
    shaping, rng = RewardShaping(zscore=ZScore(decay=0.8)), np.random.default_rng(1)
    batches = [RewardBatch(rng.random((3, 4))) for _ in range(6)]
    state, resumed = {}, {}
    for batch in batches:
        shaped, state = shaping(batch, state)
        again, resumed = shaping(batch, json.loads(json.dumps(resumed)))
        assert again.tolist() == shaped.tolist()


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.sampled_from([0.1, 0.7, 1.0, 2.9]), min_size=2, max_size=8),
    st.floats(0.01, 100),
    st.sampled_from([np.float32, np.float64]),
)
def test_shaping_without_lengths_never_makes_contrast_out_of_none(rewards, scale, dtype):
    batch = np.array([[0.7] * len(rewards), rewards], dtype=dtype)
    shaped, _ = RewardShaping(zscore=ZScore(), scale=scale, clip=(-3.0, 3.0))(RewardBatch(batch))
    assert not advantages.compute("grpo", shaped).has_signal_g[0]


def test_tensors_and_arrays_agree():
    for length in (Overlong(max_length=30, cache=15), PerToken(coef=0.1, max_length=30), GroupRelative()):
        shaping = RewardShaping(length, ZScore(tail=0.25), scale=2.0, clip=(-1.5, 1.5))
        ours, state = shaping(RewardBatch(REWARDS, LENGTHS))
        theirs, same = shaping(RewardBatch(torch.tensor(REWARDS), torch.tensor(LENGTHS)))
        assert isinstance(theirs, torch.Tensor)
        assert theirs.numpy() == pytest.approx(ours)
        assert same["zscore"] == pytest.approx(state["zscore"])


def test_a_penalty_without_a_length_takes_the_budget():
    assert PerToken(coef=0.3).with_budget(30) == PerToken(coef=0.3, max_length=30)
    assert PerToken(coef=0.3, max_length=10).with_budget(30).max_length == 10


class Steady(Shaper):
    """A step of somebody's own, which counts the batches."""

    def shape(self, batch, state):
        return batch.rewards_gk + state.get("seen", 0), {"seen": state.get("seen", 0) + 1}


class Flat(Shaper):
    def shape(self, batch, state):
        return batch.rewards_gk.mean(axis=1), state


class Broken(Shaper):
    def shape(self, batch, state):
        return batch.rewards_gk + math.nan, state


class Hoarder(Shaper):
    def shape(self, batch, state):
        return batch.rewards_gk, {"rewards": batch.rewards_gk}


class Stateless(Shaper):
    def shape(self, batch, state):
        return batch.rewards_gk


class Greedy(Shaper):
    needs = frozenset({"entropies_gkt"})


def test_steps_keep_their_states_apart():
    shaping = RewardShaping(length=Steady(), zscore=ZScore(decay=0.0, tail=0.0, eps=0.0))
    _, state = shaping(RewardBatch(REWARDS))
    _, state = shaping(RewardBatch(REWARDS), state)
    assert state == {"length": {"seen": 2}, "zscore": {"mean": 1.5, "variance": 0.25, "weight": 1.0}}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ZScore(decay=1.0), "decay"),
        (lambda: ZScore(tail=0.5), "tail"),
        (lambda: ZScore(limit=0.0), "limit"),
        (lambda: ZScore(eps=-1.0), "eps"),
        (lambda: Overlong(max_length=10, cache=20), "cache must be between"),
        (lambda: Overlong(cache=20).with_budget(10), r"^cache must be between 0 and max_length=10, got 20$"),
        (lambda: PerToken(coef=0.1, max_length=0), "max_length"),
        (lambda: RewardShaping(scale=0.0), "scale"),
        (lambda: RewardShaping(clip=(1.0, 1.0)), "clip"),
        (lambda: RewardShaping(length=Greedy()), "Greedy needs 'entropies_gkt'; a shaper may need lengths_gk or parts"),
        (lambda: winsorise([1.0], tail=0.7), "tail"),
        (lambda: winsorise([math.nan], tail=0.1), "holds nan"),
        (lambda: RewardShaping(PerToken(coef=0.1, max_length=10))(RewardBatch(REWARDS)), "needs lengths_gk"),
        (lambda: RewardShaping(PerToken(coef=0.1))(RewardBatch(REWARDS, LENGTHS)), "completion budget"),
        (lambda: RewardShaping(Flat())(RewardBatch(REWARDS)), r"Flat: shaped rewards need shape \(1, 4\), got \(1,\)"),
        (lambda: RewardShaping(Broken())(RewardBatch(REWARDS)), "Broken: rewards_gk holds"),
        (lambda: RewardShaping(Stateless())(RewardBatch(REWARDS)), "Stateless: shape must return the rewards and the"),
        (lambda: RewardShaping(Hoarder())(RewardBatch(REWARDS)), "Hoarder: its state must be a dict of JSON values"),
    ],
)
def test_bad_settings_and_input_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
