"""The recipe's objective sections say the same as the objective library."""

from __future__ import annotations

import inspect
from typing import get_args

import pytest
from pydantic import ValidationError

from levelhead.objective import advantages, controllers, shaping
from levelhead.recipe.advantage import Advantage, AdvantageKind
from levelhead.recipe.objective import Entropy, Kl
from levelhead.recipe.shaping import Shaping


def test_the_recipe_knows_every_estimator():
    assert get_args(AdvantageKind) == advantages.names()


def test_every_setting_of_an_estimator_can_be_given():
    reserved = {"rewards_gk", "ddof", "eps", "entropy_floor"}
    for name, estimator in advantages.ADVANTAGES.items():
        optional = {p.name for p in inspect.signature(estimator).parameters.values() if p.default is not p.empty}
        for option in optional - reserved:
            key, value = ("statistics", "tokens") if option == "lengths_gk" else (option, None)
            section = Advantage.model_validate({"kind": name, key: value})
            assert hasattr(section, key)


@pytest.mark.parametrize("name", advantages.names())
def test_the_options_given_are_those_the_estimator_takes(name):
    every = {"weights": {"a": 1.0}, "batch_norm": False, "k": 2, "mix": 0.1, "feature_weights": {"diversity": 1.0}}
    every |= {"outcome_weight": 1.0, "entropy_weight": 0.2, "threshold": 0.5, "apart": True}
    accepted = inspect.signature(advantages.ADVANTAGES[name]).parameters
    mine = {key: value for key, value in every.items() if key in accepted}
    assert Advantage.model_validate({"kind": name, **mine}).options() == mine


def test_a_setting_of_another_estimator_is_refused_by_name():
    with pytest.raises(ValidationError, match="k is no setting of 'grpo', but of pass_at_k, pkpo"):
        Advantage(kind="grpo", k=4)


def test_plain_recipes_keep_working():
    assert Advantage(kind="dr_grpo", ddof=0, eps=0.0, clip=2.0).options() == {}
    assert Kl(coef=0.1).settings() == {"kind": "fixed", "coef": 0.1}
    assert Kl(coef=0.1).settings(0.2) == {"kind": "fixed", "coef": 0.2}
    assert Entropy(coef=0.01).settings() == {"kind": "fixed", "coef": 0.01}
    assert shaping.make(**Shaping().model_dump()) == shaping.Shaper()


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"kind": "fixed"}, controllers.Fixed(0.05)),
        ({"kind": "band", "low": 0.01, "high": 0.1}, controllers.Band(0.05, 0.01, 0.1)),
        ({"kind": "lagrangian", "target": 0.02}, controllers.Lagrangian(0.05, 0.02)),
    ],
)
def test_kl_sections_become_controllers_with_the_same_defaults(section, expected):
    assert controllers.make(**Kl.model_validate({"coef": 0.05, "controller": section}).settings()) == expected


def test_entropy_section_becomes_a_controller_with_the_same_defaults():
    section = Entropy.model_validate({"controller": {"kind": "entropy_target", "target": 0.3}})
    assert controllers.make(**section.settings()) == controllers.EntropyTarget(target=0.3)


def test_a_task_without_a_leash_has_no_band():
    kl = Kl.model_validate({"coef": 0.05, "controller": {"kind": "band", "low": 0.01, "high": 0.1}})
    assert controllers.make(**kl.settings(0.0)) == controllers.Fixed(0.0)


def test_a_band_that_could_never_start_is_refused():
    with pytest.raises(ValidationError, match=r"kl\.coef must be above 0"):
        Kl.model_validate({"controller": {"kind": "band", "low": 0.01, "high": 0.1}})


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        ({"kind": "overlong", "cache": 10}, shaping.Overlong(max_length=64, cache=10)),
        ({"kind": "overlong", "cache": 10, "max_length": 50}, shaping.Overlong(max_length=50, cache=10)),
        ({"kind": "per_token", "coef": 0.1}, shaping.PerToken(coef=0.1, max_length=64)),
        ({"kind": "group_relative"}, shaping.GroupRelative()),
    ],
)
def test_shaping_sections_become_shapers_with_the_same_defaults(length, expected):
    section = Shaping.model_validate({"length": length, "zscore": {}, "scale": 2.0, "clip": [-1, 1]})
    shaper = shaping.make(**section.model_dump(), budget=64)
    assert shaper == shaping.Shaper(expected, shaping.ZScore(), 2.0, (-1.0, 1.0))


@pytest.mark.parametrize(
    "bad",
    [
        {"clip": [1, 0]},
        {"scale": 0},
        {"length": {"kind": "overlong"}},
        {"length": {"kind": "cosine"}},
        {"zscore": {"tail": 0.5}},
    ],
)
def test_shaping_that_cannot_be_is_refused(bad):
    with pytest.raises(ValidationError):
        Shaping.model_validate(bad)
