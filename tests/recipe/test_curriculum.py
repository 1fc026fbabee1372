from __future__ import annotations

from typing import Any

import pytest

from levelhead.errors import InputError
from levelhead.recipe import dump, parse, validate
from levelhead.recipe.training import ByWeight, Learnability


def grpo(**keys: Any) -> Any:
    recipe = validate({"model": {"preset": "tiny"}, "tasks": [{"kind": "math"}], "grpo": keys})
    assert recipe.grpo is not None
    return recipe.grpo


def test_tasks_go_by_weight_and_nothing_is_drawn_again_unless_asked() -> None:
    assert grpo().curriculum == ByWeight(kind="weights")
    assert grpo().dynamic_sampling == 0


def test_a_bare_name_is_enough_and_keys_refine_it() -> None:
    assert grpo(curriculum="learnability").curriculum == Learnability(kind="learnability")
    assert grpo(curriculum={"kind": "learnability", "floor": 0.5}).curriculum.floor == 0.5


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"curriculum": "hardest"}, "curriculum"),
        ({"curriculum": {"kind": "weights", "floor": 0.5}}, "floor"),
        ({"curriculum": {"kind": "learnability", "floor": 0.0}}, "floor"),
        ({"curriculum": {"kind": "learnability", "half_life": 0}}, "half_life"),
        ({"dynamic_sampling": -1}, "dynamic_sampling"),
    ],
)
def test_what_does_not_fit_is_named(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        grpo(**keys)


def test_a_resolved_recipe_reads_back() -> None:
    recipe = validate(
        {"model": {"preset": "tiny"}, "tasks": [{"kind": "math"}], "grpo": {"curriculum": "learnability"}}
    )
    assert parse(dump(recipe), [], source="resolved") == recipe
