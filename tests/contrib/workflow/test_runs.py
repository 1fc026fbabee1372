"""What workflow policies write is counted by hand-checked numbers, and their trainers' logs are read."""

from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Set
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.contrib.workflow.analysis import (
    analyse,
    analyse_path,
    analyse_run,
    collapse_after_update,
    tasks_of,
)
from levelhead.contrib.workflow.census import STRUCTURES, census, choices, operators, structure, written
from levelhead.contrib.workflow.log import Batch, batches_of_rollouts, is_workflow_log, read_log
from levelhead.doctor.page import page
from levelhead.doctor.render import text
from levelhead.doctor.report import examine


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
    counted = census(answers)
    assert (counted.answers, counted.valid, counted.unique) == (7, 5, 3)
    assert counted.fallback == pytest.approx(2 / 7)
    assert counted.top == (("Custom", 2, 0.4), ("Custom -> Review", 2, 0.4), ("[Custom, Test] -> ScEnsemble", 1, 0.2))
    assert counted.entropy == pytest.approx(-(2 * 0.4 * math.log(0.4) + 0.2 * math.log(0.2)))
    assert counted.operators == {"Custom": 1.0, "Review": 0.4, "ScEnsemble": 0.2, "Test": 0.2}
    assert counted.structures == {"single": 0.4, "chain": 0.4, "conditional": 0.0, "loop": 0.0, "parallel": 0.2}


def test_a_census_of_nothing_and_of_fallbacks_alone_has_no_shares() -> None:
    assert census([]).fallback == 0.0
    only = census([None, None])
    assert (only.fallback, only.unique, only.top, only.entropy) == (1.0, 0, (), 0.0)
    assert set(only.structures.values()) == {0.0}


@given(st.lists(st.sampled_from(["Custom", "Custom -> Review", "[Custom, Custom] -> ScEnsemble"]), min_size=1))
@settings(deadline=None)
def test_shares_are_shares_and_entropy_lies_within_its_bounds(answers: list[str]) -> None:
    counted = census(answers)
    assert sum(counted.structures.values()) == pytest.approx(1.0)
    assert sum(share for _, _, share in counted.top) == pytest.approx(1.0)
    assert 0.0 <= counted.entropy <= math.log(counted.unique) + 1e-12
    assert set(counted.structures) == set(STRUCTURES)


def test_only_updates_that_lose_more_than_half_of_the_validity_are_collapses() -> None:
    #            a kept half,  a lost more,  nothing to lose, recovered,  last: nothing after it
    validity = [1.0, 0.5, 0.2, 0.0, 0.0, 1.0, 0.4]
    collapse = collapse_after_update(validity)
    assert collapse.at == (1, 2, 5)
    assert (collapse.updates, collapse.collapsed) == (4, 3)
    assert collapse.rate == 0.75


def test_batches_without_an_update_are_no_collapses() -> None:
    collapse = collapse_after_update([1.0, 0.0, 1.0, 0.0], [False, True, True, True])
    assert (collapse.at, collapse.updates) == ((2,), 1)
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
    collapse = collapse_after_update([batch.validity for batch in batches], [batch.updated for batch in batches])
    assert (collapse.updates, collapse.collapsed) == (1, 1)


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
    analysis = analyse(read_log(LOG.splitlines()))
    data = analysis.to_json()
    assert data["validity"] == {4: 1.0, 5: 0.0, 6: 1.0}
    assert data["collapse"] == {"updates": 1, "collapsed": 1, "rate": 1.0, "steps": [4]}
    assert data["overall"]["answers"] == 5
    numbers, top, used, classes = analysis.tables()
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


def rollout(step: int, workflow: str | None, **more: object) -> dict[str, object]:
    info = {"domain": "math", "difficulty": "easy", "workflow": workflow, "tokens": 300, "calls": 1}
    row = {"step": step, "task": "workflow", "valid": workflow is not None, "reward": 0.9, "info": info}
    return {**row, "parts": {"correctness": 1.0}, **more}


def metric(step: int, validity: float, **more: object) -> dict[str, object]:
    return {"step": step, "stage": "grpo", "validity/workflow": validity, "grad_norm": 0.5, **more}


def test_the_collapse_rate_of_a_run_comes_from_every_step_and_not_from_the_sampled_ones() -> None:
    metrics = [metric(1, 1.0), metric(2, 0.9), metric(3, 0.3), metric(4, 0.8), metric(5, 0.9)]
    rollouts = [rollout(1, "Custom"), rollout(5, "Custom")]
    analysis = analyse_run(["workflow"], rollouts, metrics)
    assert analysis is not None
    assert list(analysis.batches) == [1, 5]
    assert analysis.validity == {1: 1.0, 2: 0.9, 3: 0.3, 4: 0.8, 5: 0.9}
    assert (analysis.collapse.collapsed, analysis.collapse.updates, analysis.collapsed_at) == (1, 4, [2])


def test_a_step_without_an_update_is_not_blamed_for_what_follows() -> None:
    metrics = [metric(1, 1.0, grad_norm="nan"), metric(2, 0.3), metric(3, 0.1, grad_norm=0.0), metric(4, 0.01)]
    analysis = analyse_run(["workflow"], [], metrics)
    assert analysis is not None
    assert (analysis.collapse.collapsed, analysis.collapse.updates, analysis.collapsed_at) == (1, 1, [2])


def test_choices_are_told_class_by_class_with_their_cost() -> None:
    rows = [
        rollout(9, "Custom"),
        rollout(9, "Custom", reward=0.5, parts={"correctness": 0.2}),
        rollout(9, None, reward=-0.1, parts={"correctness": 0.0}, info={"domain": "math", "difficulty": "easy"}),
        rollout(9, "Test", info={"domain": "code", "difficulty": "hard", "workflow": "Test", "tokens": 50, "calls": 2}),
        rollout(9, "Custom", info={"domain": "law", "difficulty": "hard", "workflow": "Custom"}),
        {"task": "workflow", "reward": 1.0},
    ]
    table = choices(answer for row in rows if (answer := written(row)) is not None)
    assert [(choice.domain, choice.answers.answers) for choice in table] == [("math", 3), ("code", 1), ("law", 1)]
    first = table[0]
    assert (first.tokens, first.calls) == (300.0, 1.0)
    assert first.reward == pytest.approx((0.9 + 0.5 - 0.1) / 3)
    assert first.accuracy == pytest.approx(1 / 3)
    assert first.row() == ("math, easy", "3", "Custom", "67%", "0.433", "33%", "300", "1.0")
    assert table[2].tokens is None


def test_rows_of_other_tasks_are_passed_over_and_a_run_without_workflows_has_no_analysis() -> None:
    rows = [rollout(1, "Custom"), rollout(1, None, task="other")]
    analysis = analyse_run(["workflow"], rows, [], [rollout(2, "Custom", task="other")])
    assert analysis is not None
    assert (analysis.overall.answers, analysis.choices) == (1, ())
    assert analyse_run(["workflow"], [], [{"step": 1, "stage": "sft", "loss": 1.0}]) is None
    assert tasks_of({"tasks": [{"kind": "workflow", "name": "flows"}, {"kind": "math"}, {"kind": "workflow"}]}) == [
        "flows",
        "workflow",
    ]
    assert tasks_of(None) == tasks_of({"tasks": None}) == tasks_of({"tasks": True}) == []


def write_folder(folder: Path) -> Path:
    (folder / "rollouts").mkdir(parents=True)
    (folder / "recipe.yaml").write_text("tasks: [{kind: workflow}]\n", encoding="utf-8")
    lines = [metric(step, 1.0 - 0.6 * (step == 3), reward=0.5) for step in range(1, 13)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    files = {
        "grpo-000010": rollout(10, "Custom -> Review"),
        "eval-sft": rollout(0, "Test"),
        "eval-grpo": rollout(12, "Custom"),
    }
    for name, row in files.items():
        with gzip.open(folder / "rollouts" / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\nno json\n")
    return folder


def test_the_doctor_reads_a_run_folder_with_its_last_held_out_choices(tmp_path: Path) -> None:
    report = examine(write_folder(tmp_path / "run"))
    workflows = report.to_json()["workflows"]
    assert workflows["overall"]["top"][0]["workflow"] == "Custom -> Review"
    assert workflows["collapse"]["steps"] == [2]
    assert [choice["answers"]["top"][0]["workflow"] for choice in workflows["choices"]] == ["Custom"]
    said = text(report)
    assert "math, easy  1        Custom" in said
    assert "1 of 11 (9.1%)" in said
    assert "<td>math, easy</td><td>1</td><td>Custom</td>" in page(report)


def test_the_doctor_analyses_a_text_log_and_nothing_else(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    lines = [
        f"Step {step}/40\nDSL质量: fallback={step == 7}, ops=1, chain=False, DSL=Custom\n触发梯度更新\n"
        for step in range(1, 41)
    ]
    log.write_text("".join(lines), encoding="utf-8")
    assert examine(log).to_json()["workflows"]["collapse"]["steps"] == [6]
    other = tmp_path / "metrics.jsonl"
    other.write_text("".join(json.dumps({"step": n, "reward": 0.1 * n}) + "\n" for n in range(1, 9)), encoding="utf-8")
    assert "workflows" not in examine(other).to_json()
    assert analyse_path(tmp_path / "nothing") is None


def accumulated(updates: int, collapsing: Set[int], steps: int = 4, fallback: float = 0.0) -> str:
    """A log with an update after every so many steps; the step after some updates is pure fallback."""
    rng = random.Random(updates)
    total, lines = updates * steps + 1, []
    for step in range(1, total + 1):
        lines.append(f"\U0001f4cd Step {step}/{total}")
        lost = (step - 1) % steps == 0 and (step - 1) // steps in collapsing
        for _ in range(6):
            valid = not lost and rng.random() >= fallback
            lines.append(f"  DSL质量: fallback={not valid}, ops=1, chain=False, DSL={'Custom' if valid else ''}")
            lines.append(f"  奖励: {rng.random() * (0.4 + 0.6 * step / total) * valid:.3f}")
        lines.append("触发梯度更新" if step % steps == 0 else "跳过触发梯度更新")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("updates", "collapsing", "steps", "first"),
    [
        (33, set(range(1, 34)), 4, 5),
        (38, set(range(2, 39)), 4, 9),
        (38, set(range(1, 38)), 4, 5),
        (33, set(range(1, 34)), 2, 3),
        (33, set(range(1, 34, 2)), 1, 2),
        (12, {3, 5, 6, 8, 11}, 8, 25),
    ],
)
def test_updates_that_are_followed_by_pure_fallback_are_update_collapse_though_validity_comes_back(
    tmp_path: Path, updates: int, collapsing: Set[int], steps: int, first: int
) -> None:
    log = tmp_path / "train.log"
    log.write_text(accumulated(updates, collapsing, steps), encoding="utf-8")
    report = examine(log)
    assert report.history.rows == updates * steps + 1
    worst = report.diagnosis.findings[0]
    assert (worst.code, worst.severity, worst.first_step) == ("update-collapse", "critical", first)
    assert worst.confidence > 0.85
    collapse = report.to_json()["workflows"]["collapse"]
    assert (collapse["collapsed"], collapse["steps"][0]) == (len(collapsing), first - 1)


@pytest.mark.parametrize("fallback", [0.0, 0.1, 0.3, 0.5])
def test_fallbacks_that_come_without_regard_to_updates_are_no_update_collapse(tmp_path: Path, fallback: float) -> None:
    log = tmp_path / "train.log"
    log.write_text(accumulated(30, set(), fallback=fallback), encoding="utf-8")
    assert all(f.code != "update-collapse" or f.severity == "info" for f in examine(log).diagnosis.findings)


def test_the_reader_and_the_analysis_split_a_log_at_the_same_steps(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(LOG, encoding="utf-8")
    validity = examine(log).history.series("validity")
    assert dict(zip(validity.steps, validity.values, strict=True)) == {4: 1.0, 5: 0.0, 6: 1.0}


def test_an_update_within_a_step_ends_a_batch_and_no_rollout_is_lost(tmp_path: Path) -> None:
    good, bad = (f"DSL质量: fallback={b}, ops=1, chain=False, DSL=Custom\n" for b in (False, True))
    log = tmp_path / "train.log"
    log.write_text(f"Step 1/9\n{good}触发梯度更新\n{bad}Step 2/9\n{good}", encoding="utf-8")
    validity = examine(log).history.series("validity")
    assert (validity.steps, validity.values) == ([1.0, 1.5, 2.0], [1.0, 0.0, 1.0])
    assert [batch.step for batch in read_log(log.read_text(encoding="utf-8").splitlines())] == [1, 1, 2]


def test_counters_of_something_else_begin_no_step_and_a_run_that_goes_back_does() -> None:
    report = "DSL质量: fallback=False, ops=1, chain=False, DSL=Custom"
    lines = [
        "Step 7/96",
        "batch 1/4",
        report,
        "batch 2/4",
        report,
        "best so far: step 3/96",
        report,
        "Step 8/96",
        report,
    ]
    assert [(batch.step, len(batch.workflows)) for batch in read_log(lines)] == [(7, 3), (8, 1)]
    again = [*lines, "2025-12-05 10:00:00 INFO Step 6/96", report, "Step 7/96", report]
    assert [batch.step for batch in read_log(again)] == [7, 8, 6, 7]
