"""What workflow policies write is counted by hand-checked numbers, and their trainers' logs are read."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.watch.workflows import (
    STRUCTURES,
    Batch,
    analyse,
    batches_of_rollouts,
    census,
    collapse_after_update,
    is_workflow_log,
    operators,
    read_log,
    structure,
)


@pytest.mark.parametrize(
    ("workflow", "expected"),
    [
        ("Custom", "single"),
        ("Custom -> Programmer", "chain"),
        ("Custom -> Review ? Revise : done", "conditional"),
        ("Custom -> (Review -> Revise) * 3", "loop"),
        ("Custom -> (Review ? Revise : done) * 3", "loop"),
        ("[Custom, Custom] -> ScEnsemble", "parallel"),
        ("[Custom, (Custom) * 2] -> ScEnsemble -> Review ? Revise : done", "parallel"),
    ],
)
def test_a_workflow_belongs_to_the_most_elaborate_class_it_shows(workflow: str, expected: str) -> None:
    assert structure(workflow) == expected


def test_operators_are_named_in_order_and_done_is_none() -> None:
    assert operators("Custom -> (Review ? Revise : done) * 3 -> Custom") == ["Custom", "Review", "Revise", "Custom"]


def test_a_census_worked_out_by_hand() -> None:
    answers = [
        "Custom",
        "Custom",
        "Custom -> Review",
        None,
        " Custom  ->  Review ",
        "[Custom, Test] -> ScEnsemble",
        None,
    ]
    found = census(answers)
    assert (found.answers, found.valid, found.unique) == (7, 5, 3)
    assert found.fallback == pytest.approx(2 / 7)
    assert found.top == (("Custom", 2, 0.4), ("Custom -> Review", 2, 0.4), ("[Custom, Test] -> ScEnsemble", 1, 0.2))
    assert found.entropy == pytest.approx(-(2 * 0.4 * math.log(0.4) + 0.2 * math.log(0.2)))
    assert found.operators == {"Custom": 1.0, "Review": 0.4, "ScEnsemble": 0.2, "Test": 0.2}
    assert found.structures == {"single": 0.4, "chain": 0.4, "conditional": 0.0, "loop": 0.0, "parallel": 0.2}


def test_a_census_of_nothing_and_of_fallbacks_alone_has_no_shares() -> None:
    assert census([]).fallback == 0.0
    only = census([None, None])
    assert (only.fallback, only.unique, only.top, only.entropy) == (1.0, 0, (), 0.0)
    assert set(only.structures.values()) == {0.0}


@given(st.lists(st.sampled_from(["Custom", "Custom -> Review", "[Custom, Custom] -> ScEnsemble"]), min_size=1))
@settings(deadline=None)
def test_shares_are_shares_and_entropy_lies_within_its_bounds(answers: list[str]) -> None:
    found = census(answers)
    assert sum(found.structures.values()) == pytest.approx(1.0)
    assert sum(share for _, _, share in found.top) == pytest.approx(1.0)
    assert 0.0 <= found.entropy <= math.log(found.unique) + 1e-12
    assert set(found.structures) == set(STRUCTURES)


def test_only_updates_that_lose_more_than_half_of_the_validity_are_collapses() -> None:
    #            a kept half,  a lost more,  nothing to lose, recovered,  last: nothing after it
    validity = [1.0, 0.5, 0.2, 0.0, 0.0, 1.0, 0.4]
    found = collapse_after_update(validity)
    assert found.at == (1, 2, 5)
    assert (found.updates, found.collapsed) == (4, 3)
    assert found.rate == 0.75


def test_batches_without_an_update_are_no_collapses() -> None:
    found = collapse_after_update([1.0, 0.0, 1.0, 0.0], [False, True, True, True])
    assert (found.at, found.updates) == ((2,), 1)
    assert collapse_after_update([1.0, 0.0], [False, False]).rate is None
    with pytest.raises(ValueError, match="marks of updates"):
        collapse_after_update([1.0], [True, False])


LOG = """
==========
\U0001f4cd Step 4/96
  DSL质量: fallback=False, ops=3, chain=True, DSL=Custom -> Programmer -> Review
  DSL质量: fallback=False, ops=1, chain=False, DSL=Custom
  ===== 准确率统计: 1/2 = 50.0%
触发梯度更新
2025-12-05 10:00:00 INFO Step 5/96
2025-12-05 10:00:01 INFO DSL质量: fallback=True, ops=0, chain=False, DSL=### Step 1: Analyze the problem
Step 9: an answer that numbers its own steps
### Step 7: and another
  DSL质量: fallback=True, ops=0, chain=False, DSL=
  跳过触发梯度更新
Step 6/96
  DSL质量: fallback=False, ops=3, chain=True, DSL=Custom -> Review ? Revise : done
"""


def test_a_text_log_is_read_step_by_step_and_answers_are_not_mistaken_for_steps() -> None:
    assert read_log(LOG.splitlines()) == [
        Batch(4, ("Custom -> Programmer -> Review", "Custom"), updated=True),
        Batch(5, (None, None), updated=False),
        Batch(6, ("Custom -> Review ? Revise : done",), updated=False),
    ]
    assert is_workflow_log(LOG.splitlines())
    assert not is_workflow_log(["{'reward': 0.5}", "step 4: reward 0.1"])


def test_the_story_of_the_log_is_one_update_and_one_collapse() -> None:
    batches = read_log(LOG.splitlines())
    found = collapse_after_update([batch.validity for batch in batches], [batch.updated for batch in batches])
    assert (found.updates, found.collapsed) == (1, 1)


def test_reports_after_an_update_belong_to_the_next_batch_even_without_a_number() -> None:
    lines = ["DSL质量: fallback=False, ops=1, chain=False, DSL=Custom", "触发梯度更新"] * 2
    assert read_log(lines) == [Batch(None, ("Custom",), updated=True)] * 2


@given(st.lists(st.sampled_from([*LOG.splitlines(), "Step 3", "第 8 步", ""])))
@settings(deadline=None)
def test_any_order_of_lines_is_read_without_losing_a_report(lines: list[str]) -> None:
    batches = read_log(lines)
    assert sum(len(batch.workflows) for batch in batches) == sum("DSL质量" in line for line in lines)
    assert all(batch.workflows for batch in batches)


def test_the_rollout_lines_of_a_run_become_batches() -> None:
    rows = [
        {"step": 20, "valid": True, "completion": "<workflow>Custom -> Format</workflow>"},
        {"step": 10, "valid": True, "completion": "ignored", "info": {"workflow": "Custom"}},
        {"step": 10, "valid": False, "completion": "### Step 1"},
        {"step": "?", "valid": True},
        {"reward": 1.0},
    ]
    assert batches_of_rollouts(rows) == [
        Batch(10, ("Custom", None), updated=True),
        Batch(20, ("Custom -> Format",), updated=True),
    ]


def test_an_analysis_says_what_was_written_and_at_which_steps_it_collapsed() -> None:
    found = analyse(read_log(LOG.splitlines()))
    data = found.to_json()
    assert data["validity"] == {4: 1.0, 5: 0.0, 6: 1.0}
    assert data["collapse"] == {"updates": 1, "collapsed": 1, "rate": 1.0, "steps": [4]}
    assert data["overall"]["answers"] == 5
    numbers, top, used, classes = found.tables()
    assert dict(numbers.rows)["updates followed by a collapse"] == "1 of 1 (100.0%)"
    assert dict(numbers.rows)["fallbacks"] == "2 (40.0%)"
    assert len(top.rows) == 3
    assert used.rows[0] == ("Custom", "100.0%")
    assert [name for name, _ in classes.rows] == list(STRUCTURES)


def test_batches_without_numbers_are_counted_and_none_is_lost() -> None:
    batches = [
        Batch(None, ("Custom",), updated=True),
        Batch(None, (None,), updated=True),
        Batch(None, (None,), updated=True),
    ]
    assert list(analyse(batches).batches) == [1, 2, 3]
    assert analyse([]).overall.answers == 0
