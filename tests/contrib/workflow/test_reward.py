"""The reward: named parts, hand-computed, and no workflow always below any workflow."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from levelhead.contrib.workflow import reward
from levelhead.contrib.workflow.language import extract
from levelhead.recipe.workflow import RewardWeights, ThreeLevelReward, WeightedReward

WEIGHTED = WeightedReward(kind="weighted")


def test_the_weighted_reward_worked_out_by_hand() -> None:
    looks = reward.looks(extract("Here: <workflow>Custom -> Custom -> Review ? Revise : done</workflow>"))
    parts = reward.parts(WEIGHTED, looks, 0.7, 1500)
    assert parts == pytest.approx(
        {
            "correctness": 0.7,
            "efficiency": 1 - 1500 / 6000,
            "simplicity": 1 - 0.3 - 0.1,  # four operators, one nesting
            "format": 0.5,  # other text around it
            "repetition": 0.5,  # one of two arrows joins equal steps
        }
    )
    want = 0.65 * 0.7 + 0.15 * 0.75 + 0.10 * 0.6 + 0.05 * 0.5 + 0.05 * 0.5
    assert math.isclose(reward.total(WEIGHTED, parts), want)


def test_a_right_answer_from_one_operator_that_costs_nothing_is_worth_one() -> None:
    parts = reward.parts(WEIGHTED, reward.looks(extract("Programmer")), 1.0, 0)
    assert math.isclose(reward.total(WEIGHTED, parts), 1.0)


@given(
    st.sampled_from(reward.LEVELS),
    st.integers(0, 10**6),
    st.sampled_from(
        ["Custom", "[Custom, Custom] -> ScEnsemble", "text\n```\nCustom\n```", " -> ".join(["Custom"] * 20), "custom"]
    ),
    st.floats(-5, -1e-6),
)
@settings(deadline=None)
def test_any_valid_workflow_is_worth_more_than_none(level: float, tokens: int, answer: str, invalid: float) -> None:
    recipe = WeightedReward(kind="weighted", invalid=invalid)
    parts = reward.parts(recipe, reward.looks(extract(answer, near_misses=True)), level, tokens)
    assert set(parts) == set(reward.PARTS)
    assert all(0.0 <= value <= 1.0 for value in parts.values())
    assert recipe.invalid < 0.0 <= reward.total(recipe, parts) <= 1.0 + 1e-12


def test_each_part_alone_moves_the_total_by_its_weight() -> None:
    base = dict.fromkeys(reward.PARTS, 0.0)
    for name, weight in zip(reward.PARTS, (0.65, 0.15, 0.10, 0.05, 0.05), strict=True):
        assert math.isclose(reward.total(WEIGHTED, {**base, name: 1.0}), weight)


def test_a_rewritten_near_miss_loses_its_format() -> None:
    assert reward.looks(extract("Custom"))["format"] == 1.0
    assert reward.looks(extract("Custom.", near_misses=True))["format"] == 0.0


def test_equal_branches_of_an_ensemble_are_no_repetition() -> None:
    assert reward.looks(extract("[Custom, Custom, Custom] -> ScEnsemble"))["repetition"] == 1.0
    assert reward.looks(extract("Custom -> Format -> Format -> Format"))["repetition"] == pytest.approx(1 / 3)


def test_the_three_level_reward_knows_right_wrong_and_none() -> None:
    recipe = ThreeLevelReward(kind="three_level")
    looks = reward.looks(extract("Custom"))
    totals = [reward.total(recipe, reward.parts(recipe, looks, level, 100)) for level in reward.LEVELS]
    assert totals == [0.2, 0.2, 0.2, 0.2, 1.0]
    assert recipe.invalid == 0.0


def test_rewards_in_which_no_workflow_pays_are_refused() -> None:
    with pytest.raises(ValidationError, match="less than 0"):
        WeightedReward(kind="weighted", invalid=0.0)
    with pytest.raises(ValidationError, match="must hold"):
        ThreeLevelReward(kind="three_level", invalid=0.3)
    with pytest.raises(ValidationError, match="must sum to 1"):
        RewardWeights(correctness=0.9)


def test_an_answer_without_a_workflow_has_no_looks() -> None:
    with pytest.raises(ValueError, match="without a workflow"):
        reward.looks(extract("### Step 1"))
