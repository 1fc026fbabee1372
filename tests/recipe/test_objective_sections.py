"""The objective's keys name what the library has, and refuse what would have no effect."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from levelhead.objective import aggregation, kl, losses
from levelhead.objective.advantages import ADVANTAGES
from levelhead.recipe import Recipe
from levelhead.recipe.objective import Audit, Kl, Loss, Merge
from levelhead.recipe.training import Grpo


def names(section: type, key: str) -> set[str]:
    annotation = section.model_fields[key].annotation
    options = [option for option in get_args(annotation) if option is not type(None)]
    return {name for option in options for name in (get_args(option) or (option,))}


@pytest.mark.parametrize(
    ("section", "key", "registered"),
    [
        (Loss, "aggregation", set(get_args(losses.Aggregation))),
        (Loss, "importance", set(get_args(losses.Correction))),
        (Kl, "estimator", set(get_args(kl.Estimator))),
        (Kl, "gradient", set(get_args(kl.Gradient))),
        (Merge, "switch_to", set(aggregation.AGGREGATORS) - {"sum", "mean"}),
    ],
)
def test_every_name_of_the_library_can_be_asked_for_and_no_other(section, key, registered):
    assert names(section, key) == registered


@pytest.mark.parametrize(
    ("key", "registered"), [("loss", losses.LOSSES), ("merge", aggregation.AGGREGATORS), ("advantage", ADVANTAGES)]
)
def test_every_variant_of_the_library_has_a_section_and_no_other_has(key: str, registered: dict[str, Any]) -> None:
    schema = Grpo.model_json_schema()
    kinds = {option["$ref"].rpartition("/")[2] for option in schema["properties"][key]["oneOf"]}
    sections = [schema["$defs"][kind]["properties"] for kind in kinds]
    assert {section["kind"]["const"] for section in sections} == {*registered, "custom"}
    shared = {"loss": "aggregation", "merge": "scale", "advantage": "clip"}[key]
    assert all(shared in section for section in sections)


@pytest.mark.parametrize(
    ("section", "keys", "message"),
    [
        (Loss, {"fixed_length": 64}, "aggregation: fixed_length"),
        (Loss, {"cov_low": 9.0}, "is a key of kind clip_cov"),
        (Loss, {"importance_low": 3.0}, "importance_low"),
        (Loss, {"top_entropy": 0.0}, "top_entropy"),
        (Kl, {"where": "reward"}, "estimator: k1"),
        (Kl, {"where": "reward", "estimator": "k1", "gradient": "k2"}, "gradient: plain"),
        (Merge, {"switch_after": 3}, "monitor_every"),
        (Merge, {"c": 1.0}, "c"),
        (Audit, {"first": -1}, "first"),
    ],
)
def test_keys_without_effect_are_refused_with_the_way_out(section: Any, keys: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        section(**keys)


def test_an_empty_section_is_plain_grpo_with_a_short_audit():
    assert (Loss().kind, Kl().coef, Merge().kind, Audit().first) == ("ppo_clip", 0.0, "sum", 3)


def test_a_band_of_a_task_needs_a_coefficient_to_start_from():
    band = {"kind": "band", "low": 0.01, "high": 0.02}
    tasks = [{"kind": "math", "kl_controller": band}]
    with pytest.raises(
        ValidationError, match=r"tasks.0.kl_controller: a band multiplies .* tasks.0.kl \(or grpo.kl.coef\)"
    ):
        Recipe(model={"preset": "tiny"}, tasks=tasks, grpo={})
    for given, grpo in (([{**tasks[0], "kl": 0.1}], {}), (tasks, {"kl": {"coef": 0.1}})):
        assert Recipe(model={"preset": "tiny"}, tasks=given, grpo=grpo).tasks[0].kl_controller.high == 0.02
    with pytest.raises(ValidationError, match=r"low .* must be below high"):
        Recipe(model={"preset": "tiny"}, tasks=[{"kind": "math", "kl_controller": {**band, "low": 1.0}}], grpo={})
