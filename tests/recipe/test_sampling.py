from __future__ import annotations

import pytest
from pydantic import ValidationError

from levelhead.recipe.sampling import EvalSampling, Sampling, TrainSampling
from levelhead.recipe.training import Evaluation, Grpo


def test_a_constant_temperature_is_the_same_at_every_step():
    sampling = TrainSampling(temperature=0.7)
    assert [sampling.at(step, 10).temperature for step in (0, 5, 9)] == [0.7, 0.7, 0.7]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("linear", [1.0, 0.9, 0.8, 0.7, 0.6]), ("cosine", [1.0, 0.941421, 0.8, 0.658579, 0.6])],
)
def test_a_schedule_starts_and_ends_where_the_recipe_says(schedule, expected):
    sampling = TrainSampling(temperature=1.0, temperature_schedule=schedule, temperature_final=0.6, top_k=5)
    assert [sampling.at(step, 5).temperature for step in range(5)] == pytest.approx(expected, abs=1e-6)
    assert sampling.at(2, 5).top_k == 5
    assert sampling.at(99, 5).temperature == pytest.approx(0.6)
    assert sampling.at(0, 1).temperature == 1.0


@pytest.mark.parametrize(
    "keys",
    [
        {"temperature_schedule": "linear"},
        {"temperature_final": 0.5},
        {"temperature": 0.0, "temperature_schedule": "linear", "temperature_final": 0.5},
        {"temperature_schedule": "linear", "temperature_final": 0.0},
        {"min_new_tokens": 64, "max_new_tokens": 64},
        {"repetition_penalty": 0.0},
        {"no_repeat_ngram": -1},
    ],
)
def test_half_a_setting_is_refused(keys):
    with pytest.raises(ValidationError):
        TrainSampling(**keys)


def test_training_and_evaluation_have_sections_of_their_own():
    assert type(Grpo().sampling) is TrainSampling
    assert type(Evaluation().sampling) is EvalSampling
    assert Evaluation().sampling.temperature == 0
    with pytest.raises(ValidationError, match="temperature_schedule"):
        Evaluation(sampling={"temperature_schedule": "linear"})
    with pytest.raises(ValidationError):
        Grpo(sampling=EvalSampling())
    assert not issubclass(EvalSampling, TrainSampling)
    assert issubclass(EvalSampling, Sampling)
