"""Families make names and know their members."""

import pytest

from levelhead import metrics as metric
from levelhead.metrics import held_out
from levelhead.metrics.catalogue import find


def test_a_family_makes_the_name_of_a_member() -> None:
    assert metric.KL_BY_TASK.of("fairness") == "kl/fairness"
    assert metric.MERGE_COSINE.of("one", "two") == "merge/cosine/one/two"
    assert held_out.NUMBER.of("one", held_out.STRUCTURE.of("loop")) == "eval/one/structure/loop"


def test_a_name_needs_as_many_fields_as_its_template() -> None:
    with pytest.raises(ValueError, match=r"merge/cosine/.* wants 2 fields \(task, other\), got 1"):
        metric.MERGE_COSINE.of("one")


def test_a_family_begins_and_ends_as_its_members_do() -> None:
    assert (metric.PART_MEAN.prefix, metric.PART_MEAN.suffix) == ("rewards/", "/mean")
    assert metric.TASK_PART_MEAN.of("one", "parity").startswith(metric.TASK_PART_MEAN.prefix)


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("kl", "kl"),
        ("kl/one", "kl/<task>"),
        ("rewards/parity/mean", "rewards/<part>/mean"),
        ("rewards/one/parity/mean", "rewards/<task>/<part>/mean"),
        ("audit/policy/one/coef_error", "audit/<term>/coef_error"),
        ("audit/policy/one/from_weight decay", "audit/<term>/from_<source>"),
        ("curriculum/share/web/click-test", "curriculum/share/<arm>"),
        ("eval/one/score", "eval/<task>/score"),
        ("eval/one/condition=ambig/score", "eval/<task>/<key>=<value>/score"),
        ("eval/one/accuracy/Age/ambig", "eval/<task>/accuracy/<group>"),
        ("eval/one/mine", "eval/<task>/<name>"),
    ],
)
def test_a_key_of_a_line_is_found_by_its_declaration(key: str, shown: str) -> None:
    declared = find(key)
    assert declared is not None
    assert declared.shown == shown


@pytest.mark.parametrize("key", ["mine", "kl/one/two", "guard/speed", "eval/one"])
def test_a_key_that_nobody_declared_is_no_metric(key: str) -> None:
    assert find(key) is None
