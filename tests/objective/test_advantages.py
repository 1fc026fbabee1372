"""The claims of ``objective.advantages``: hand numbers, properties, bad input, and what peers compute."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from levelhead.objective import advantages

FIXTURES = Path(__file__).parent / "fixtures"
DEAD = [[0.7] * 8, [1.0, 0.0] * 4]
KINDS = {
    "numpy32": lambda x: np.asarray(x, dtype=np.float32),
    "numpy64": lambda x: np.asarray(x, dtype=np.float64),
    "torch32": lambda x: torch.tensor(x, dtype=torch.float32),
    "torch64": lambda x: torch.tensor(x, dtype=torch.float64),
    "bfloat16": lambda x: torch.tensor(x, dtype=torch.bfloat16),
}
GROUP_BASELINE = [
    "grpo",
    "dr_grpo",
    "rloo",
    "batch",
    "reinforce_pp_baseline",
    "gdpo",
    "opo",
    "gtpo",
    "pass_at_k",
    "pkpo",
]
NOT_DIVIDED = {"dr_grpo", "rloo", "opo", "pkpo", "return_to_go", "loo_gae"}
"""Estimators that divide by no standard deviation."""
EPS = set(advantages.names()) - NOT_DIVIDED


def extras(name, groups, k, make=np.asarray, seed=0):
    """Everything that estimator ``name`` cannot do without, for rewards of shape (groups, k)."""
    rng = np.random.default_rng(seed)
    mask = (np.arange(6)[None, None] < rng.integers(1, 7, (groups, k, 1))).astype(float)
    extra = {
        "parts": lambda: {"a": make(rng.random((groups, k)).tolist()), "b": make(rng.random((groups, k)).tolist())},
        "lengths_gk": lambda: make(rng.integers(1, 50, (groups, k)).astype(float).tolist()),
        "entropies_gkt": lambda: make(rng.random((groups, k, 6)).tolist()),
        "mask_gkt": lambda: make(mask.tolist()),
        # Episodes of one turn, of which nothing is paid on the way.
        "turn_rewards_gkn": lambda: make(np.zeros((groups, k, 1)).tolist()),
        "turns_gkn": lambda: make(np.ones((groups, k, 1)).tolist()),
        "states_gkn": lambda: make(np.zeros((groups, k, 1)).tolist()),
        "features": lambda: {f: make(rng.random((groups, k)).tolist()) for f in advantages.STRUCTURE_WEIGHTS},
    }
    options = {"k": min(4, k - 1)} if name == "pass_at_k" else {"k": min(4, k)} if name == "pkpo" else {}
    return {key: extra[key]() for key in advantages.inputs(name)} | options


def compute(name, rewards, **options):
    rewards = np.asarray(rewards, dtype=np.float64)
    return advantages.compute(name, rewards, **(extras(name, *rewards.shape) | options))


rewards_strategy = st.integers(2, 6).flatmap(
    lambda k: st.lists(
        st.lists(st.sampled_from([-1.0, 0.0, 0.2, 0.4, 0.7, 1.0]), min_size=k, max_size=k), min_size=1, max_size=5
    )
)


class TestDeadGroups:
    @pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
    @pytest.mark.parametrize("name", GROUP_BASELINE)
    @pytest.mark.parametrize("eps", [0.0, 1e-9, 1e-6, 1e-4])
    def test_equal_rewards_give_exactly_zero(self, name, make, eps):
        options = extras(name, 2, 8, make)
        if name == "gdpo":
            options["parts"] = {"a": make(DEAD), "b": make([[0.1] * 8, [0.3, 0.1] * 4])}
        result = advantages.compute(name, make(DEAD), eps=eps, **options)
        assert [float(v) for v in result.values_gk[0]] == [0.0] * 8
        assert [bool(v) for v in result.has_signal_g] == [False, True]
        assert all(math.isfinite(float(v)) for v in result.values_gk[1])
        assert any(float(v) != 0 for v in result.values_gk[1])
        if result.tokens_gkt is not None:
            assert not bool((result.tokens_gkt[0] != 0).any())

    @pytest.mark.parametrize("name", ["grpo", "batch", "reinforce_pp", "reinforce_pp_baseline"])
    def test_a_batch_of_equal_rewards_is_dead_altogether(self, name):
        result = advantages.compute(name, np.full((3, 8), 0.7, dtype=np.float32), eps=0.0)
        assert result.values_gk.tolist() == [[0.0] * 8] * 3
        assert result.has_signal_g.tolist() == [False] * 3

    def test_peers_turn_a_dead_group_into_advantages_of_one_sign(self):
        """What the exact centring is for: in float32 the mean of eight 0.7 is not 0.7."""
        trl, verl = (json.loads((FIXTURES / f"advantages_{name}.json").read_text()) for name in ("trl", "verl"))
        assert trl["dead_group"] == pytest.approx([0.0006] * 8, rel=0.01)
        assert verl["dead_group"] == pytest.approx([0.056] * 8, rel=0.01)

    def test_parts_that_cancel_are_dead_and_not_blown_up(self):
        rng = np.random.default_rng(0)
        part = rng.random((4, 6))
        result = advantages.compute("gdpo", part, parts={"a": part, "b": 1 - part}, eps=0.0)
        assert not result.has_signal_g.any()
        assert not result.values_gk.any()

    def test_reinforce_pp_has_no_group_baseline(self):
        result = advantages.compute("reinforce_pp", [[1.0, 1.0], [0.0, 0.0]], ddof=0, eps=0.0)
        assert result.values_gk.tolist() == [[1.0, 1.0], [-1.0, -1.0]]
        assert result.has_signal_g.all()


class TestHandNumbers:
    @pytest.mark.parametrize("make", [KINDS["numpy32"], KINDS["numpy64"], KINDS["torch32"]])
    @pytest.mark.parametrize("pair", [(0.0, 1.0), (0.1, 0.3), (-2.0, 7.5), (0.7, 0.70001), (0.0, 1e-30), (0.0, 1e30)])
    def test_two_different_rewards_give_plus_and_minus_one_whatever_the_gap(self, make, pair):
        population = advantages.compute("grpo", make([pair]), ddof=0, eps=0.0).values_gk[0]
        assert [float(v) for v in population] == [-1.0, 1.0]
        sample = advantages.compute("grpo", make([pair]), ddof=1, eps=0.0).values_gk[0]
        assert [float(v) for v in sample] == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], rel=1e-6)

    def test_dr_grpo_halves_a_gap_of_two(self):
        assert compute("dr_grpo", [[0.9, 0.1]]).values_gk[0].tolist() == pytest.approx([0.4, -0.4], abs=1e-15)

    def test_rloo_subtracts_the_mean_of_the_others(self):
        values = compute("rloo", [[1.0, 0.0, 0.5, 0.0]]).values_gk[0]
        assert values.tolist() == pytest.approx([1 - 0.5 / 3, -1.5 / 3, 0.5 - 1 / 3, -1.5 / 3])

    def test_grpo_by_default_takes_the_sample_deviation_plus_one_in_ten_thousand(self):
        values = advantages.compute("grpo", [[3.0, 1.0, 1.0, 1.0]]).values_gk[0]
        assert values.tolist() == pytest.approx([1.5 / 1.0001] + [-0.5 / 1.0001] * 3)

    def test_batch_divides_by_the_deviation_of_all_rewards(self):
        values = compute("batch", [[1.0, 0.0], [3.0, 3.0]], ddof=0, eps=0.0).values_gk
        std = math.sqrt(((1 - 1.75) ** 2 + 1.75**2 + 2 * 1.25**2) / 4)
        assert values.tolist() == [pytest.approx([0.5 / std, -0.5 / std]), [0.0, 0.0]]

    def test_reinforce_pp_baseline_leaves_differences_between_groups_out(self):
        rewards = [[1.0, 0.0], [100.0, 101.0]]
        values = compute("reinforce_pp_baseline", rewards, ddof=0, eps=0.0).values_gk
        assert values.tolist() == [pytest.approx([1.0, -1.0]), pytest.approx([-1.0, 1.0])]

    def test_reinforce_pp_can_count_tokens(self):
        values = compute("reinforce_pp", [[1.0, 0.0]], lengths_gk=[[3, 1]], ddof=0, eps=0.0).values_gk[0]
        std = math.sqrt(0.75 * 0.25)
        assert values.tolist() == pytest.approx([0.25 / std, -0.75 / std])

    def test_opo_weighs_the_baseline_by_length(self):
        values = compute("opo", [[1.0, 0.0]], lengths_gk=[[3, 1]]).values_gk[0]
        assert values.tolist() == pytest.approx([0.25, -0.75])

    def test_gdpo_tells_apart_what_a_sum_does_not(self):
        parts = {"answer": [[1.0, 0.0, 0.0, 0.0]], "format": [[0.0, 1.0, 1.0, 1.0]]}
        assert not compute("grpo", np.add(parts["answer"], parts["format"])).has_signal_g.any()
        values = compute("gdpo", [[1.0] * 4], parts=parts, weights={"answer": 2.0}, batch_norm=False, ddof=0, eps=0.0)
        root = math.sqrt(3)
        assert values.values_gk[0].tolist() == pytest.approx([2 * root - root] + [-2 / root + 1 / root] * 3)

    @pytest.mark.parametrize("ddof", [0, 1])
    def test_gdpo_leaves_out_where_a_part_does_not_apply_as_trl_does_with_nan(self, ddof):
        rng = np.random.default_rng(3)
        parts = {name: rng.normal(size=(5, 6)) for name in ("a", "b")}
        applies = {"b": rng.random((5, 6)) < 0.6}
        applies["b"][0] = [True, False, False, False, False, False]  # one alone has no deviation
        holes = {**parts, "b": np.where(applies["b"], parts["b"], np.nan)}
        wanted = np.zeros((5, 6))
        for values in holes.values():
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                std = np.nanstd(values, axis=1, keepdims=True, ddof=ddof)
                score = (values - np.nanmean(values, axis=1, keepdims=True)) / (std + 1e-4)
            wanted += np.nan_to_num(score)
        options = {"batch_norm": False, "ddof": ddof, "eps": 1e-4}
        for xp in (np.asarray, torch.as_tensor):
            given = {name: xp(values) for name, values in parts.items()}
            mask = {"b": xp(applies["b"].astype(float))}
            got = advantages.compute("gdpo", xp(parts["a"]), parts=given, applies=mask, **options).values_gk
            np.testing.assert_allclose(np.asarray(got), wanted, atol=1e-9)

    def test_gdpo_ends_with_a_batch_deviation_of_one(self):
        assert np.std(compute("gdpo", np.zeros((5, 4)), ddof=0, eps=0.0).values_gk) == pytest.approx(1.0)

    def test_workflow_aware_speaks_at_mix_where_rewards_are_silent(self):
        features = {name: [[0.0, 1.0], [0.0, 1.0]] for name in advantages.STRUCTURE_WEIGHTS}
        rewards = [[1.0, 0.0], [0.2, 0.2]]
        result = compute("workflow_aware", rewards, features=features, ddof=0, eps=0.0)
        assert result.values_gk.tolist() == [[1.0, -1.0], pytest.approx([-0.12, 0.12])]
        assert result.has_signal_g.all()
        silent = compute("workflow_aware", rewards, features=features, mix=0.0)
        assert silent.has_signal_g.tolist() == [True, False]

    def test_workflow_aware_is_silent_where_structure_is_alike_too(self):
        features = {name: [[0.3, 0.3, 0.3]] for name in advantages.STRUCTURE_WEIGHTS}
        result = compute("workflow_aware", [[0.7] * 3], features=features)
        assert not result.has_signal_g.any()
        assert not result.values_gk.any()

    def test_workflow_weights_sum_to_one(self):
        assert sum(advantages.STRUCTURE_WEIGHTS.values()) == pytest.approx(1.0)

    def test_clip_bounds_every_advantage(self):
        free = compute("grpo", [[1.0] + [0.0] * 15]).values_gk
        clipped = compute("grpo", [[1.0] + [0.0] * 15], clip=2.0).values_gk
        assert free.max() > 3
        assert clipped.max() == 2.0
        assert clipped.min() == free.min()
        shaped = compute("gtpo", [[1.0, 0.0, 0.0]], clip=0.5)
        assert abs(shaped.tokens_gkt).max() == 0.5


class TestGtpo:
    REWARDS = np.array([[1.0, 1.0, 0.0, 0.0]])
    MASK = np.array([[[1, 1], [1, 0], [1, 1], [1, 0]]])
    ENTROPY = np.array([[[0.1, 0.5], [0.3, 9.0], [0.2, 0.4], [0.05, 7.0]]])
    SOLVED = (1 + 0.1 * 2 * 0.1 / 0.4, 1 + 0.1, 1 + 0.1 * 2 * 0.3 / 0.4)
    FAILED = (-(1 + 0.1 * 2 * 5 / 25), -(1 + 0.1), -(1 + 0.1 * 2 * 20 / 25))
    """Equations 3 and 5 of the paper by hand, outcome weight 1, entropy weight 0.1."""

    def run(self, **options):
        tensors = {"entropies_gkt": self.ENTROPY, "mask_gkt": self.MASK} | options
        return advantages.compute("gtpo", self.REWARDS, ddof=0, eps=0.0, **tensors)

    @staticmethod
    def flat(tokens):
        """Tokens in the order of the scores: two of the first rollout, one of the second, and so on."""
        return [*tokens[0, 0], tokens[0, 1, 0], *tokens[0, 2], tokens[0, 3, 0]]

    def test_matches_the_equations(self):
        scores = np.array(self.SOLVED + self.FAILED)
        tokens = self.run().tokens_gkt
        assert self.flat(tokens) == pytest.approx(((scores - scores.mean()) / scores.std()).tolist())
        assert (tokens[0, 1, 1], tokens[0, 3, 1]) == (0.0, 0.0)

    def test_rounding_of_equal_shares_is_not_blown_up(self):
        mask = (np.arange(8)[None, None] < np.arange(1, 9)[None, :, None]).astype(float)
        options = {"entropies_gkt": np.full((1, 8, 8), 0.1), "mask_gkt": mask, "apart": True, "ddof": 0, "eps": 0.0}
        assert not advantages.compute("gtpo", [[1.0] * 7 + [0.0]], **options).tokens_gkt.any()

    def test_values_are_means_over_tokens(self):
        result = self.run()
        assert result.values_gk[0, 0] == pytest.approx(result.tokens_gkt[0, 0].mean())
        assert result.values_gk[0, 1] == pytest.approx(result.tokens_gkt[0, 1, 0])

    def test_apart_removes_what_tells_solved_from_failed(self):
        expected = [(np.array(side) - np.mean(side)) / np.std(side) for side in (self.SOLVED, self.FAILED)]
        assert self.flat(self.run(apart=True).tokens_gkt) == pytest.approx(np.concatenate(expected).tolist())

    def test_flat_entropy_is_no_signal_of_its_own(self):
        flat = np.full_like(self.ENTROPY, 0.3)
        weighted = advantages.compute("reinforce_pp", self.REWARDS, lengths_gk=[[2, 1, 2, 1]], ddof=0, eps=0.0)
        tokens = self.run(entropies_gkt=flat).tokens_gkt
        assert tokens[0, :, 0].tolist() == pytest.approx(weighted.values_gk[0].tolist())
        assert not self.run(entropies_gkt=flat, apart=True).tokens_gkt.any()

    def test_a_threshold_can_leave_a_group_on_one_side(self):
        result = compute("gtpo", [[0.6, 0.8, 0.9]], threshold=0.5)
        assert not result.has_signal_g.any()
        assert not result.tokens_gkt.any()

    def test_a_reward_at_the_mean_has_failed_whatever_the_rounding(self):
        low = compute("gtpo", [[0.4, 0.4, 0.7, 1.0, 1.0]]).tokens_gkt
        assert low == pytest.approx(compute("gtpo", [[32.4, 32.4, 32.7, 33.0, 33.0]]).tokens_gkt)
        assert compute("gtpo", [[0.0, 0.5, 1.0]]).values_gk[0, 1] < 0

    def test_padding_changes_nothing(self):
        entropy = np.concatenate([self.ENTROPY, np.full((1, 4, 4), 5.0)], axis=2)
        padded = self.run(entropies_gkt=entropy, mask_gkt=np.concatenate([self.MASK, np.zeros((1, 4, 4))], axis=2))
        assert padded.values_gk.tolist() == [pytest.approx(self.run().values_gk[0].tolist())]
        assert not padded.tokens_gkt[0, :, 2:].any()


class TestSubsets:
    @staticmethod
    def brute(rewards, k):
        """Mean best over the k-subsets that hold i; mean and deviation over all; what i adds to k - 1 others."""
        n = len(rewards)
        best = {subset: max(rewards[i] for i in subset) for subset in itertools.combinations(range(n), k)}
        own = [np.mean([b for s, b in best.items() if i in s]) for i in range(n)]
        gain = []
        for i in range(n):
            others = itertools.combinations([rewards[j] for j in range(n) if j != i], k - 1)
            gain.append(np.mean([max(rewards[i], *rest) - max(rest) for rest in others]) if k > 1 else rewards[i])
        return np.array(own), np.mean(list(best.values())), np.std(list(best.values())), np.array(gain)

    @settings(deadline=None, max_examples=40)
    @given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]), min_size=3, max_size=7), st.data())
    def test_match_enumeration_of_all_subsets(self, rewards, data):
        k = data.draw(st.integers(2, len(rewards) - 1))
        own, mean, std, gain = self.brute(rewards, k)
        computed = advantages.compute("pass_at_k", [rewards], k=k, eps=0.5)
        assert computed.values_gk[0] == pytest.approx((own - mean) / (std + 0.5), abs=1e-12)
        assert bool(computed.has_signal_g[0]) == (std > 1e-12)
        added = advantages.compute("pkpo", [rewards], k=k)
        assert added.values_gk[0] == pytest.approx(gain, abs=1e-12)
        assert bool(added.has_signal_g[0]) == (gain.max() > 1e-12)

    def test_pass_at_k_is_the_paper_s_closed_form_for_binary_rewards(self):
        n, solved, k = 8, 3, 4
        missed = math.comb(n - solved, k) / math.comb(n, k)
        spread = math.sqrt(missed * (1 - missed))
        values = advantages.compute("pass_at_k", [[1.0] * solved + [0.0] * (n - solved)], k=k, eps=0.0).values_gk[0]
        assert values[:solved] == pytest.approx(missed / spread)
        failed = missed - math.comb(n - solved - 1, k - 1) / math.comb(n - 1, k - 1)
        assert values[solved:] == pytest.approx(failed / spread)

    def test_pass_at_one_is_grpo_with_the_population_deviation(self):
        rewards = [[0.0, 0.2, 0.7, 1.0], [1.0, 0.0, 0.0, 0.0]]
        single = advantages.compute("pass_at_k", rewards, k=1, eps=0.01).values_gk
        assert single == pytest.approx(advantages.compute("grpo", rewards, ddof=0, eps=0.01).values_gk)

    def test_a_group_in_which_every_subset_succeeds_teaches_nothing(self):
        result = advantages.compute("pass_at_k", [[1.0, 1.0, 1.0, 0.0]], k=2)
        assert not result.has_signal_g.any()
        assert not result.values_gk.any()

    @pytest.mark.parametrize("k", [2, 3])
    def test_pkpo_is_an_unbiased_gradient_of_the_expected_best_of_k(self, k):
        """Exact expectation over all samples of a three-armed softmax bandit against its derivative."""
        rewards, logits, n = np.array([0.0, 0.3, 1.0]), np.array([0.2, -0.1, 0.4]), 4

        def probabilities(z):
            return np.exp(z) / np.exp(z).sum()

        def best_of_k(z):
            p = probabilities(z)
            return sum(
                np.prod(p[list(arms)]) * rewards[list(arms)].max() for arms in itertools.product(range(3), repeat=k)
            )

        p, gradient = probabilities(logits), np.zeros(3)
        for arms in itertools.product(range(3), repeat=n):
            values = advantages.compute("pkpo", [rewards[list(arms)]], k=k).values_gk[0]
            scores = np.eye(3)[list(arms)] - p
            gradient += np.prod(p[list(arms)]) * k * (values[:, None] * scores).mean(axis=0)
        steps = 1e-6 * np.eye(3)
        numeric = [(best_of_k(logits + s) - best_of_k(logits - s)) / 2e-6 for s in steps]
        assert gradient == pytest.approx(numeric, abs=1e-8)


class TestProperties:
    @settings(deadline=None, max_examples=40)
    @given(rewards_strategy)
    @pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "batch", "reinforce_pp_baseline", "gdpo", "pass_at_k"])
    def test_advantages_of_a_group_sum_to_zero(self, name, rewards):
        assert compute(name, rewards).values_gk.sum(axis=1) == pytest.approx(0.0, abs=1e-9)

    @settings(deadline=None, max_examples=25)
    @given(rewards_strategy)
    def test_opo_advantages_weighted_by_length_sum_to_zero(self, rewards):
        lengths = extras("opo", len(rewards), len(rewards[0]))["lengths_gk"]
        weighted = compute("opo", rewards).values_gk * lengths
        assert weighted.sum(axis=1) == pytest.approx(0.0, abs=1e-9)

    @settings(deadline=None, max_examples=25)
    @given(rewards_strategy, st.floats(-100, 100))
    @pytest.mark.parametrize("name", advantages.names())
    def test_adding_a_constant_to_all_rewards_changes_nothing(self, name, rewards, shift):
        assert compute(name, rewards).values_gk == pytest.approx(
            compute(name, np.add(rewards, shift)).values_gk, abs=1e-6
        )

    @settings(deadline=None, max_examples=25)
    @given(rewards_strategy, st.floats(1e-3, 1e3))
    @pytest.mark.parametrize("name", advantages.names())
    def test_scaling_rewards_scales_advantages_or_leaves_them(self, name, rewards, factor):
        options = {"eps": 0.0} if name in EPS else {}
        base = compute(name, rewards, **options).values_gk
        scaled = compute(name, np.multiply(rewards, factor), **options).values_gk
        expected = base if name in EPS else base * factor
        assert scaled == pytest.approx(expected, rel=1e-6, abs=1e-9)

    @settings(deadline=None, max_examples=25)
    @given(rewards_strategy, st.randoms(use_true_random=False))
    @pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "batch", "reinforce_pp", "pass_at_k", "pkpo"])
    def test_the_order_within_a_group_carries_over(self, name, rewards, random):
        order = list(range(len(rewards[0])))
        random.shuffle(order)
        rewards = np.asarray(rewards)
        shuffled = compute(name, rewards[:, order]).values_gk
        assert shuffled == pytest.approx(compute(name, rewards).values_gk[:, order], abs=1e-9)

    @settings(deadline=None, max_examples=25)
    @given(rewards_strategy)
    @pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "pass_at_k", "pkpo"])
    def test_a_group_does_not_depend_on_the_batch_it_is_in(self, name, rewards):
        whole = compute(name, rewards)
        alone = [compute(name, [group]) for group in rewards]
        assert whole.values_gk.tolist() == [one.values_gk[0].tolist() for one in alone]
        assert whole.has_signal_g.tolist() == [bool(one.has_signal_g[0]) for one in alone]

    @settings(deadline=None, max_examples=25)
    @given(rewards_strategy)
    @pytest.mark.parametrize("name", advantages.names())
    def test_a_group_is_live_exactly_when_an_advantage_is_not_zero(self, name, rewards):
        result = compute(name, rewards, **({"eps": 0.0} if name in EPS else {}))
        assert np.isfinite(result.values_gk).all()
        carrier = result.values_gk if result.tokens_gkt is None else result.tokens_gkt.reshape(len(rewards), -1)
        assert result.has_signal_g.tolist() == (carrier != 0).any(axis=1).tolist()

    @settings(deadline=None, max_examples=30)
    @given(rewards_strategy)
    def test_a_better_reward_never_gets_a_lower_advantage(self, rewards):
        assume(len(rewards[0]) > 2)
        for name in ("grpo", "dr_grpo", "rloo", "batch", "reinforce_pp", "pass_at_k", "pkpo"):
            values = compute(name, rewards).values_gk
            for group, advantage in zip(rewards, values, strict=True):
                order = np.argsort(group, kind="stable")
                assert (np.diff(advantage[order]) >= -1e-12).all()


class TestKindsOfArray:
    @pytest.mark.parametrize("name", advantages.names())
    @pytest.mark.parametrize("kind", ["torch32", "torch64", "numpy32"])
    def test_tensors_and_arrays_agree(self, name, kind):
        rewards = np.random.default_rng(1).choice([0.0, 0.3, 1.0], (5, 6))
        make = KINDS[kind]
        ours = advantages.compute(name, make(rewards.tolist()), **extras(name, 5, 6, make))
        reference = advantages.compute(name, rewards, **extras(name, 5, 6))
        assert type(ours.values_gk) is type(make([[0.0]]))
        assert ours.values_gk.dtype == make([[0.0]]).dtype
        assert np.asarray(ours.values_gk) == pytest.approx(reference.values_gk, abs=2e-5)
        assert np.asarray(ours.has_signal_g).tolist() == reference.has_signal_g.tolist()

    @pytest.mark.parametrize("rewards", [[[0, 1], [1, 1]], np.array([[0, 1], [1, 1]]), torch.tensor([[0, 1], [1, 1]])])
    def test_integers_and_lists_are_taken_as_floats(self, rewards):
        values = advantages.compute("dr_grpo", rewards).values_gk
        assert values.tolist() == [[-0.5, 0.5], [0.0, 0.0]]

    def test_half_precision_is_computed_in_single(self):
        values = advantages.compute("grpo", torch.tensor([[0.0, 1.0]], dtype=torch.bfloat16)).values_gk
        assert values.dtype == torch.float32


class TestPeers:
    @staticmethod
    def records(peer):
        document = json.loads((FIXTURES / f"advantages_{peer}.json").read_text())
        cases = {case["name"]: case for case in document["cases"]}
        return document, [(record, cases[record["case"]]) for record in document["records"]]

    @staticmethod
    def ours(record, case, document, **options):
        name, rewards = record["ours"], np.asarray(case["rewards"], dtype=np.float32)
        if name == "gdpo":
            options |= {key: case[key] for key in ("parts", "weights")}
        if name == "pkpo":
            options["k"] = rewards.shape[1]
        if name in EPS:
            options |= {"ddof": document["ddof"], "eps": document["eps"]}
        return advantages.compute(name, rewards, **options).values_gk

    def test_trl_agrees(self):
        document, records = self.records("trl")
        assert len(records) == 15
        for record, case in records:
            assert self.ours(record, case, document) == pytest.approx(np.array(record["values"]), abs=2e-5), record

    def test_verl_agrees(self):
        """verl whitens over tokens and subtracts the token mean; ours leaves the mean where groups have a baseline."""
        document, records = self.records("verl")
        assert len(records) == 24
        for record, case in records:
            options = {}
            if record["ours"] in {"opo", "reinforce_pp", "reinforce_pp_baseline", "gdpo"}:
                options["lengths_gk"] = case["lengths"]
            values = self.ours(record, case, document, **options)
            if record["ours"] in {"reinforce_pp_baseline", "gdpo"}:
                values = values - np.average(values, weights=case["lengths"])
            assert values == pytest.approx(np.array(record["values"]), abs=5e-5), record


class TestBadInput:
    def test_an_unknown_name_lists_the_known_ones(self):
        with pytest.raises(ValueError, match="unknown advantage estimator 'gpro'; known: grpo, dr_grpo, rloo"):
            advantages.compute("gpro", [[0.0, 1.0]])

    @pytest.mark.parametrize("name", advantages.names())
    def test_a_group_of_one_is_refused(self, name):
        with pytest.raises(ValueError, match="at least 2 rollouts"):
            advantages.compute(name, [[1.0], [0.0]], **{key: {} for key in advantages.inputs(name)})

    @pytest.mark.parametrize("name", advantages.names())
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_a_reward_that_is_not_finite_is_refused(self, name, bad):
        with pytest.raises(ValueError, match=f"rewards_gk holds {bad}"):
            advantages.compute(name, [[1.0, bad]], **extras(name, 1, 2))

    def test_a_span_beyond_the_data_type_is_refused(self):
        with pytest.raises(ValueError, match="must be finite"):
            advantages.compute("dr_grpo", np.array([[3e38, -3e38]], dtype=np.float32))

    @pytest.mark.parametrize("shape", [(4,), (0, 4), (2, 2, 2)])
    def test_the_wrong_shape_is_refused(self, shape):
        with pytest.raises(ValueError, match=r"shape|no group"):
            advantages.compute("grpo", np.zeros(shape))

    @pytest.mark.parametrize("name", [name for name in advantages.names() if advantages.inputs(name)])
    def test_a_missing_input_is_named(self, name):
        missing = ", ".join(sorted(advantages.inputs(name)))
        with pytest.raises(ValueError, match=f"{name!r} needs {missing}"):
            advantages.compute(name, [[0.0, 1.0]])

    def test_an_extra_nobody_asked_for_is_named(self):
        with pytest.raises(ValueError, match="'grpo' takes no 'lengths_gk'; it takes no extras"):
            advantages.compute("grpo", [[0.0, 1.0]], lengths_gk=[[1, 1]])

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"ddof": 2}, "ddof must be"),
            ({"eps": -1.0}, "eps must be"),
            ({"eps": math.nan}, "eps"),
            ({"clip": 0.0}, "clip"),
        ],
    )
    def test_settings_out_of_range_are_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            advantages.compute("grpo", [[0.0, 1.0]], **options)

    @pytest.mark.parametrize(
        ("name", "options", "message"),
        [
            ("opo", {"lengths_gk": [[1, 2, 3]]}, "lengths_gk must have shape"),
            ("opo", {"lengths_gk": [[1, 0]]}, "at least one token"),
            ("gdpo", {"parts": {}}, "at least one named reward"),
            ("gdpo", {"parts": {"a": [[0, 1]]}, "weights": {"b": 1.0}}, "no named reward; known: a"),
            ("gdpo", {"parts": {"a": [[0, math.nan]]}}, r"parts\['a'\] holds nan"),
            ("workflow_aware", {"features": {"diversity": [[0, 1]]}}, "efficiency, execution_success"),
            ("workflow_aware", {"features": {}, "feature_weights": {}, "mix": -1.0}, "mix must be"),
            ("pass_at_k", {"k": 2}, "1 <= k < K, got k=2 with K=2"),
            ("pkpo", {"k": 1}, "for k=1 use rloo"),
            ("gtpo", {"entropies_gkt": [[[1.0], [1.0]]], "mask_gkt": [[[1], [0]]]}, "without any token"),
            ("gtpo", {"entropies_gkt": [[[1.0], [-1.0]]], "mask_gkt": [[[1], [1]]]}, "never negative"),
            ("gtpo", {"entropies_gkt": [[[1.0], [1.0]]], "mask_gkt": [[[1], [2]]]}, "only 0 and 1"),
            ("gtpo", {"entropies_gkt": [[[1.0], [1.0]]], "mask_gkt": [[[1, 1], [1, 1]]]}, "mask_gkt"),
            ("gtpo", {"entropies_gkt": [[1.0, 1.0]], "mask_gkt": [[[1], [1]]]}, "entropies_gkt must have shape"),
        ],
    )
    def test_extras_that_do_not_fit_are_refused(self, name, options, message):
        with pytest.raises(ValueError, match=message):
            advantages.compute(name, [[0.0, 1.0]], **options)


def test_the_registry_names_every_input_an_estimator_needs():
    assert advantages.inputs("grpo") == frozenset()
    assert advantages.inputs("gtpo") == {"entropies_gkt", "mask_gkt"}
    assert advantages.inputs("opo") == {"lengths_gk"}
