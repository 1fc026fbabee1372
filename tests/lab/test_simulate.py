"""The simulator's numbers are the exact ones where there are exact ones, and drawn numbers agree with them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from levelhead.errors import InputError
from levelhead.lab import simulate as lab
from levelhead.lab.outcomes import bernoulli, empirical, parse_distribution, read_rewards, weighted
from levelhead.lab.simulate import LEVELS, Setup, simulate
from levelhead.lab.simulate_plot import figure, write_plot
from levelhead.objective import advantages

SIZES = [2, 4, 8, 16, 64]
CHANCES = [0.05, 0.5, 0.95]
GRADED = weighted({0.0: 0.5, 0.2: 0.3, 1.0: 0.2})


def binomial(k, chance):
    """Exact probability of every number of successes, in rational arithmetic on the float given."""
    p = Fraction(chance)
    return [math.comb(k, s) * p**s * (1 - p) ** (k - s) for s in range(k + 1)]


def row(outcomes, k, **options):
    return simulate(outcomes, [k], Setup(**options)).rows[0]


@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize("chance", CHANCES)
class TestExactBinomials:
    def test_probability_of_dead_groups(self, k, chance):
        mass, result = binomial(k, chance), row(bernoulli(chance), k)
        assert result.exact
        assert result.all_failed == pytest.approx(float(mass[0]), rel=1e-12)
        assert result.all_solved == pytest.approx(float(mass[-1]), rel=1e-12)
        assert result.dead == pytest.approx(float(mass[0] + mass[-1]), rel=1e-12)
        assert result.live == pytest.approx(float(1 - mass[0] - mass[-1]), rel=1e-12)

    def test_probability_of_steps_without_signal(self, k, chance):
        mass, result = binomial(k, chance), row(bernoulli(chance), k, tokens=100, budget=12800)
        assert result.groups == 128 // k
        assert result.dead_step == pytest.approx(float((mass[0] + mass[-1]) ** (128 // k)), rel=1e-9, abs=1e-15)
        assert result.live_groups == pytest.approx(float((1 - mass[0] - mass[-1]) * (128 // k)))

    @pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "rloo"])
    def test_distribution_of_advantages(self, k, chance, estimator):
        mass, result = binomial(k, chance), row(bernoulli(chance), k, estimator=estimator)
        weights: dict[float, Fraction] = {}
        for solved in range(k + 1):
            rewards = np.array([[1.0] * solved + [0.0] * (k - solved)])
            for value in advantages.compute(estimator, rewards).values_gk[0]:
                weights[float(value)] = weights.get(float(value), Fraction(0)) + mass[solved] / k
        ordered = sorted(weights)
        second = sum(value**2 * float(weights[value]) for value in ordered)
        assert result.spread == pytest.approx(math.sqrt(second), rel=1e-9)
        assert result.largest == pytest.approx(max(map(abs, ordered)))
        for level, value in zip(LEVELS, result.quantiles, strict=True):
            below = sum(float(weights[v]) for v in ordered if v < value - 1e-9)
            upto = sum(float(weights[v]) for v in ordered if v <= value + 1e-9)
            assert below <= level + 1e-9
            assert upto >= level - 1e-9

    def test_rloo_signal_is_the_reward_s_deviation_whatever_the_group_size(self, k, chance):
        result = row(bernoulli(chance), k, estimator="rloo", tokens=250)
        assert result.signal == pytest.approx(math.sqrt(chance * (1 - chance)))
        assert result.signal_per_1k_tokens == pytest.approx(4 * result.signal)

    def test_a_group_mean_costs_one_rollout(self, k, chance):
        for estimator in ("rloo", "dr_grpo"):
            assert row(bernoulli(chance), k, estimator=estimator).effective_samples == pytest.approx(k - 1)

    def test_grpo_is_worth_no_more_than_its_unscaled_sibling(self, k, chance):
        scaled = row(bernoulli(chance), k, estimator="grpo", eps=0.0)
        assert scaled.efficiency <= row(bernoulli(chance), k, estimator="dr_grpo").efficiency + 1e-12


class TestOtherRewards:
    def test_groups_of_graded_rewards_die_with_the_sum_of_powers(self):
        result = row(GRADED, 4)
        assert result.dead == pytest.approx(0.5**4 + 0.3**4 + 0.2**4)
        assert (result.all_failed, result.all_solved) == pytest.approx((0.5**4, 0.2**4))

    def test_enumerated_groups_have_probability_one(self):
        _, weights = lab._enumerated(GRADED, 9)
        assert weights.sum() == pytest.approx(1.0)
        assert len(weights) == math.comb(11, 2)

    @pytest.mark.parametrize("estimator", ["grpo", "rloo", "pass_at_k", "pkpo"])
    def test_drawing_agrees_with_enumerating(self, estimator, monkeypatch):
        options = {"options": {"k": 3}} if estimator in {"pass_at_k", "pkpo"} else {}
        exact = row(GRADED, 6, estimator=estimator, **options)
        monkeypatch.setattr(lab, "MAX_ENUMERATED", 0)
        drawn = row(GRADED, 6, estimator=estimator, **options)
        assert exact.exact
        assert not drawn.exact
        for name in ("dead", "all_failed", "live", "signal", "spread", "efficiency"):
            assert getattr(drawn, name) == pytest.approx(getattr(exact, name), rel=0.02, abs=0.01)

    def test_opo_with_equal_lengths_is_dr_grpo(self):
        same = row(GRADED, 6, estimator="opo", length_cv=0.0)
        assert same.exact
        assert same.signal == pytest.approx(row(GRADED, 6, estimator="dr_grpo").signal)
        assert row(GRADED, 6, estimator="opo").efficiency < same.efficiency

    def test_batch_estimators_see_the_whole_step(self):
        result = row(bernoulli(0.5), 8, estimator="batch", ddof=0, eps=0.0)
        assert not result.exact
        assert result.signal == pytest.approx(7 / 8, abs=0.01)

    def test_a_step_of_reinforce_pp_is_dead_only_when_every_rollout_is_alike(self):
        result = row(bernoulli(0.05), 8, estimator="reinforce_pp", tokens=100, budget=3200)
        assert result.dead_step == pytest.approx(0.95**32 + 0.05**32)
        assert result.live > 1 - result.dead

    def test_many_different_rewards_are_drawn_with_their_frequencies(self):
        rewards = np.random.default_rng(0).random(500)
        result = row(empirical(rewards), 4, estimator="rloo")
        assert not result.exact
        assert result.dead < 1e-6
        assert result.signal == pytest.approx(rewards.std(), rel=0.02)

    def test_a_certain_outcome_has_no_signal(self):
        result = simulate(bernoulli(1.0), [2, 8], Setup())
        assert [line.dead for line in result.rows] == [1.0, 1.0]
        assert [line.efficiency for line in result.rows] == [0.0, 0.0]
        assert "no group size helps" in result.reason

    def test_the_same_seed_gives_the_same_numbers(self):
        first, second, other = (row(GRADED, 8, estimator="batch", seed=seed) for seed in (1, 1, 2))
        assert first == second
        assert first != other


class TestRecommendation:
    def test_the_smallest_size_close_to_the_best_is_recommended(self):
        result = simulate(bernoulli(0.5), SIZES, Setup(estimator="rloo"))
        assert result.recommended_k == 16
        assert result.rows[3].efficiency >= 0.9 * result.rows[4].efficiency > result.rows[2].efficiency

    def test_a_size_the_budget_does_not_buy_is_not_recommended(self):
        assert simulate(bernoulli(0.5), SIZES, Setup(budget=8 * 512)).recommended_k == 8
        poor = simulate(bernoulli(0.5), SIZES, Setup(budget=100))
        assert poor.recommended_k == 2
        assert "does not buy one group" in poor.reason

    def test_steps_without_signal_are_warned_of_with_the_budget_that_cures_them(self):
        result = simulate(bernoulli(0.05), SIZES, Setup())
        assert "49,152 tokens a step" in result.reason
        cured = simulate(bernoulli(0.05), [result.recommended_k], Setup(budget=49_152))
        assert cured.rows[0].dead_step <= 0.01
        assert "have no signal" not in cured.reason


class TestOutcomes:
    def test_distributions_are_normalised_and_sorted(self):
        outcomes = parse_distribution("1=1, 0=2,0.5=1")
        assert outcomes.values == (0.0, 0.5, 1.0)
        assert outcomes.probabilities == (0.5, 0.25, 0.25)
        assert (outcomes.mean, outcomes.std) == pytest.approx((0.375, math.sqrt(0.171875)))

    @pytest.mark.parametrize(
        ("name", "text"),
        [("a.txt", "0 1\n1,0.5\n"), ("a.json", "[0, 1, 1, 0.5]"), ("a.jsonl", '0\n{"reward": 1}\n\n1.0\n0.5\n')],
    )
    def test_measured_rewards_are_read(self, tmp_path, name, text):
        (tmp_path / name).write_text(text)
        outcomes = read_rewards(tmp_path / name)
        assert outcomes.label == name
        assert outcomes.values == (0.0, 0.5, 1.0)
        assert outcomes.probabilities == (0.25, 0.25, 0.5)

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("a.txt", "0 one"),
            ("a.json", "{"),
            ("a.json", '["x"]'),
            ("a.jsonl", "true"),
            ("a.txt", ""),
            ("a.txt", "nan"),
        ],
    )
    def test_a_file_that_holds_something_else_is_named(self, tmp_path, name, text):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=name):
            read_rewards(tmp_path / name)

    def test_a_missing_file_is_named(self, tmp_path):
        with pytest.raises(InputError, match="gone"):
            read_rewards(tmp_path / "gone.txt")

    @pytest.mark.parametrize("text", ["", "0", "0=x", "0=1,0=1", "0=-1,1=2", "0=0", "inf=1"])
    def test_a_distribution_that_is_none_is_refused(self, text):
        with pytest.raises(InputError, match="--distribution"):
            parse_distribution(text)

    def test_a_chance_beyond_one_is_refused(self):
        with pytest.raises(ValueError, match="between 0 and 1"):
            bernoulli(1.5)


class TestBadSetups:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"estimator": "gdpo"}, "needs parts, which a reward alone does not give"),
            ({"estimator": "gpro"}, "unknown advantage estimator"),
            ({"tokens": 0}, "tokens must be"),
            ({"budget": math.inf}, "budget must be"),
            ({"length_cv": -1}, "length_cv"),
        ],
    )
    def test_a_setup_that_cannot_run_is_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            Setup(**options)

    @pytest.mark.parametrize(("sizes", "message"), [([], "at least one group size"), ([1, 2], "got K=1")])
    def test_group_sizes_are_checked(self, sizes, message):
        with pytest.raises(ValueError, match=message):
            simulate(bernoulli(0.5), sizes, Setup())


def test_results_are_json(tmp_path):
    document = json.loads(json.dumps(simulate(GRADED, [2, 4], Setup()).to_json()))
    assert [line["k"] for line in document["rows"]] == [2, 4]
    assert set(document["rows"][0]["quantiles"]) == {"0.05", "0.25", "0.5", "0.75", "0.95"}


def test_the_plot_shows_every_result_in_one_self_contained_file(tmp_path):
    results = [simulate(bernoulli(chance), SIZES, Setup()) for chance in (0.05, 0.5)]
    drawn = figure(results)
    assert len(drawn["data"]) == 2 * (3 + 2 + 2)
    assert {trace["type"] for trace in drawn["data"]} == {"bar", "scatter"}  # all that the library draws
    failed = next(trace for trace in drawn["data"] if trace["name"] == "all failed")
    assert failed["y"] == [line.all_failed for line in results[0].rows]
    half = next(trace for trace in drawn["data"] if trace["name"] == "its middle half")
    _, first, median, third, _ = results[0].rows[-1].quantiles
    assert half["y"][-1] + half["error_y"]["array"][-1] == pytest.approx(third)
    assert half["y"][-1] - half["error_y"]["arrayminus"][-1] == pytest.approx(first)
    assert half["y"][-1] == median
    axes = {f"yaxis{trace['yaxis'][1:]}" for trace in drawn["data"]}
    assert axes <= {*drawn["layout"]}
    write_plot(results, tmp_path / "plot.html")
    page = (tmp_path / "plot.html").read_text()
    assert "<script src=" not in page
    assert "success 0.05, grpo" in page


def test_no_torch_is_needed():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from levelhead.lab.simulate import Setup, simulate\n"
        "from levelhead.lab.outcomes import bernoulli\n"
        "print(simulate(bernoulli(0.5), [2, 8], Setup()).recommended_k)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "8"
