"""Hand-computed numbers, and simulations of policies of which it is known what their answers tell."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable

import pytest

from levelhead.diagnosis.sameness import alike, entropy, expected_by_chance, information, likeness, metrics, over_forms


def test_entropy_of_counts() -> None:
    assert entropy([3, 3]) == pytest.approx(math.log(2))
    assert entropy([7]) == 0.0
    assert entropy([]) == 0.0
    assert entropy([1, 3]) == pytest.approx(0.25 * math.log(4) + 0.75 * math.log(4 / 3))


def test_what_chance_gives_is_the_mean_over_all_ways_of_dealing_the_answers_out() -> None:
    answers, sizes = "aaabbc", (2, 4)
    plain = []
    for order in itertools.permutations(answers):
        groups = [order[:2], order[2:]]
        within = sum(len(g) / 6 * entropy(Counter(g).values()) for g in groups)
        plain.append(entropy(Counter(answers).values()) - within)
    assert expected_by_chance(sizes, [3, 2, 1]) == pytest.approx(statistics.fmean(plain), abs=1e-12)


def test_the_information_of_two_groups_by_hand() -> None:
    # Plain: ln 2 - 0.  Of the 6 ways to deal a, a, b, b out to two pairs, 2 tell the groups apart (ln 2), 4 do not (0).
    chance = math.log(2) / 3
    assert expected_by_chance([2, 2], [2, 2]) == pytest.approx(chance)
    assert information([["a", "a"], ["b", "b"]]) == pytest.approx(math.log(2))
    # Mixed pairs: plain 0, so below 0 by what chance would have given, scaled by H / (H - E).
    assert information([["a", "b"], ["a", "b"]]) == pytest.approx(math.log(2) * -chance / (math.log(2) - chance))


def test_one_answer_to_everything_holds_no_information() -> None:
    assert information([["a"] * 4] * 5) == 0.0


@pytest.mark.parametrize("groups", [[["a", "b"], ["c", "d"]], [["a"], ["b"], ["a"]], []])
def test_information_is_not_told_where_chance_explains_anything(groups: list[list[str]]) -> None:
    assert information(groups) is None


def simulated(choose: Callable[[random.Random], list[float]], prompts: int, k: int, repeats: int) -> list[float]:
    """Estimates for a policy that answers a random prompt by the distribution that ``choose`` returns."""
    rng = random.Random(7)
    estimates = []
    for _ in range(repeats):
        chances = [choose(rng) for _ in range(prompts)]
        value = information([[str(x) for x in rng.choices(range(len(p)), p, k=k)] for p in chances])
        if value is not None:
            estimates.append(value)
    return estimates


@pytest.mark.parametrize("answers", [2, 5, 20])
@pytest.mark.parametrize(("prompts", "k"), [(4, 4), (8, 8)])
def test_a_policy_that_ignores_the_prompt_has_no_information_on_average(answers: int, prompts: int, k: int) -> None:
    estimates = simulated(lambda _: [1 / (i + 1) for i in range(answers)], prompts, k, 400)
    error = statistics.stdev(estimates) / math.sqrt(len(estimates))
    assert abs(statistics.fmean(estimates)) < 3 * error + 1e-9


def test_the_information_of_a_policy_that_reads_two_kinds_of_prompt_is_recovered() -> None:
    def noisy(rng: random.Random) -> list[float]:
        return [0.9, 0.1] if rng.random() < 0.5 else [0.1, 0.9]

    truth = math.log(2) + 0.9 * math.log(0.9) + 0.1 * math.log(0.1)
    assert statistics.fmean(simulated(noisy, 16, 16, 200)) == pytest.approx(truth, rel=0.1)


def test_an_answer_of_its_own_for_each_of_six_kinds_of_prompt_is_recovered() -> None:
    def sure(rng: random.Random) -> list[float]:
        kind = rng.randrange(6)
        return [float(i == kind) for i in range(6)]

    assert statistics.fmean(simulated(sure, 64, 8, 50)) == pytest.approx(math.log(6), rel=0.05)


def test_the_top_share_counts_prompts_whose_most_common_answer_is_the_batchs() -> None:
    found = likeness([["x", "x", "y"], ["x", "y", "x"], ["z", "z", "x"], ["x", "z", "y"]])
    assert found is not None
    # The last group is a tie of three, x among them.
    assert (found.top, found.top_share, found.distinct) == ("x", 0.75, 0.75)


def test_a_constant_answer_has_the_top_share_one_and_one_answer_for_all_prompts() -> None:
    found = likeness([["unknown"] * 8] * 10)
    assert found is not None
    assert (found.top_share, found.distinct, found.entropy, found.information) == (1.0, 0.1, 0.0, 0.0)


def test_one_prompt_cannot_say_whether_answers_depend_on_prompts() -> None:
    assert likeness([["a", "a"]]) is None
    assert likeness([["a", "a"], []]) is None


def test_a_letter_that_is_always_the_same_counts_by_its_wording() -> None:
    meanings = [["bob"] * 4, ["eve"] * 4, ["unknown"] * 4]
    by_wording = alike(meanings, [["Answer: A"] * 4] * 3)
    assert by_wording is not None
    assert by_wording.top_share == 1.0
    by_meaning = alike(meanings, [["A"] * 4, ["B"] * 4, ["C"] * 4])
    assert by_meaning is not None
    assert by_meaning.top_share == pytest.approx(1 / 3)


def test_gauges_over_forms_are_means_by_prompts_and_information_that_of_the_forms_that_can_say() -> None:
    mine, other = likeness([["no"] * 4] * 3), likeness([["a", "a"], ["b", "b"]])
    assert mine is not None
    assert other is not None
    both = over_forms([(3, mine), (2, other)])
    assert both is not None
    assert both.top == "no"
    assert both.top_share == pytest.approx((3 * 1 + 2 * 0.5) / 5)
    assert both.entropy == pytest.approx(2 * math.log(2) / 5)
    assert both.information == pytest.approx(2 * math.log(2) / 5)
    mute = likeness([["x"], ["y"]])
    assert mute is not None
    assert mute.information is None
    half = over_forms([(3, mine), (2, mute)])
    assert half is not None
    assert half.information == 0.0
    assert over_forms([]) is None


def test_metrics_carry_the_name_of_their_task_and_leave_out_what_is_not_known() -> None:
    told = likeness([["a", "b"], ["c", "d"]])
    assert set(metrics("echo", told, None)) == {f"answers/{name}/echo" for name in ("top_share", "distinct", "entropy")}
    assert metrics("echo", None, None) == {}
    whole = metrics("echo", likeness([["a", "a"], ["b", "b"]]), likeness([["a"], ["a"]]))
    assert whole["answers/perfect_share/echo"] == 1.0
    assert whole["answers/information/echo"] == pytest.approx(math.log(2))
