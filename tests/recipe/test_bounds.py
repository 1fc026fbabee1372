"""Every number of a recipe has bounds, and a value that fits nowhere is told with its key."""

from __future__ import annotations

import pytest

from levelhead.errors import InputError
from levelhead.recipe import parse

BASE = "model: {preset: tiny}\ntasks:\n  - {kind: fairness%s}\n"


def refused(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse(text)
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    assert len(said) < 400
    return said


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("seed: -1", "seed"), ("seed: 99999999999999999999999", "seed"), ("seed: true", "seed"),
        ("threads: 1000000", "threads"), ("name: '..'", "name"), ("name: a/b", "name"), ("name: .x", "name"),
        ("grpo: {optimizer: {betas: [0.9, 1.5]}}", "grpo.optimizer.betas.1"),
        ("grpo: {optimizer: {betas: [true, 0.9]}}", "grpo.optimizer.betas"),
        ("grpo: {optimizer: {learning_rate: .inf}}", "grpo.optimizer.learning_rate"),
        ("grpo: {optimizer: {learning_rate: .nan}}", "grpo.optimizer.learning_rate"),
        ("grpo: {optimizer: {learning_rate: 1e9}}", "grpo.optimizer.learning_rate"),
        ("grpo: {kl: {coef: true}}", "grpo.kl.coef"), ("grpo: {kl: {coef: 1e300}}", "grpo.kl.coef"),
        ("grpo: {async: true}", "grpo.async"), ("grpo: {sampling: {temperature: 1e308}}", "grpo.sampling.temperature"),
        ("grpo: {sampling: {repetition_penalty: 1e30}}", "grpo.sampling.repetition_penalty"),
        ("grpo: {loss: {cov_low: -.inf}}", "grpo.loss.cov_low"), ("grpo: {steps: 1000000000000}", "grpo.steps"),
        ("grpo: {advantage: {kind: gdpo, weights: {a: 1e300}}}", "grpo.advantage.weights"),
        ("grpo: {advantage: {kind: gdpo, weights: {a: true}}}", "grpo.advantage.weights"),
    ],
)  # fmt: skip
def test_a_number_out_of_bounds_names_its_key(text: str, key: str) -> None:
    assert refused(BASE % "" + text).startswith(f"recipe: {key}: ")


@pytest.mark.parametrize(
    ("text", "key"),
    [("kl: true", "kl"), ("weight: 0", "weight"), ("weight: 1e300", "weight"), ("name: a/b", "name"),
     ("name: '..'", "name"), ("name: \"a\\eb\"", "name"), ("shaping: {clip: [-.inf, 1]}", "shaping.clip.0"),
     ("shaping: {scale: 1e30}", "shaping.scale")],
)  # fmt: skip
def test_a_task_is_held_to_bounds_too(text: str, key: str) -> None:
    assert refused(BASE % f", {text}").startswith(f"recipe: tasks.0.{key}: ")


@pytest.mark.parametrize("text", ["x: !!float x", "x: !!timestamp x", "? [a]\n: b", "x: " + "[" * 600, "&a [*a]"])
def test_yaml_that_no_recipe_holds_is_refused_in_one_line(text: str) -> None:
    assert "YAML" in refused(BASE % "" + text)


def test_truth_values_and_whole_floats_stay_where_they_belong() -> None:
    recipe = parse(
        BASE % "" + "check: false\nguard: {policy: off}\ngrpo: {steps: 1e3, mask_truncated: true}\nseed: 4294967296"
    )
    assert (recipe.check, recipe.guard.policy, recipe.grpo and recipe.grpo.steps) == (False, "off", 1000)
