"""``rewards/constant``: a recipe whose reward pays one sentence is told so before it starts; others are left alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from levelhead.preflight import preflight
from levelhead.preflight.check import Outcome
from levelhead.recipe import load, validate
from levelhead.training.prepare import prepare
from small_run import recipe, write_rows

RECIPES = Path(__file__).parents[2] / "recipes"
SMALL = ["model.tiny={hidden_size: 32, layers: 1, heads: 2, kv_heads: 1, intermediate_size: 48, context: 512}"]
FEW = ["tasks.0.items=600", "tasks.1.items=600"]
REWARDS = """
def near(completions, number, **columns):
    def one(text, right):
        try:
            return max(0.0, 1 - abs(float(text) - right) / 40)
        except ValueError:
            return 0.0
    return [one(text, right) for text, right in zip(completions, number)]


def right(completions, answer, **columns):
    return [float(text.strip() == wanted) for text, wanted in zip(completions, answer)]


def long(completions, answer, **columns):
    return [len(text) / 5 + (text.strip() == wanted) for text, wanted in zip(completions, answer)]


def begins(completions, answer, **columns):
    return [float(text[:1] == "t") for text in completions]
"""


def checks(given: Any) -> Sequence[Outcome]:
    return preflight(prepare(given), families=["rewards/constant"]).checks


def function(folder: Path, reward: str, answers: Sequence[str], **changes: Any) -> Outcome:
    write_rows(
        folder / "rows.jsonl",
        [{"prompt": f"question {i}?", "answer": a, "number": i} for i, a in enumerate(answers)],
    )
    (folder / "more.py").write_text(REWARDS, encoding="utf-8")
    task = {
        "name": "one",
        "kind": "function",
        "path": str(folder / "rows.jsonl"),
        "rewards": [f"{folder / 'more.py'}:{reward}"],
        "oracle": "answer",
    }
    (check,) = checks(validate(recipe(folder, **{"tasks": [task], **changes})))
    assert check.name == "rewards/constant/one"
    return check


@pytest.mark.parametrize("name", ["dual-constant"])
def test_the_demo_of_150_supervised_steps_is_warned_of_abstaining(name: str) -> None:
    fairness, faithfulness = checks(load(RECIPES / f"{name}.yaml", [*SMALL, *FEW, "sft.steps=150"]))
    assert faithfulness.name == "rewards/constant/faithfulness"
    assert faithfulness.status == "warn"
    assert "always answers 'Evidence: none / Answer: unknown'" in faithfulness.message
    assert "GRPO will find it" in faithfulness.message
    for key in ("sft.steps above 150", "tasks[].balance: true"):
        assert key in faithfulness.fix
    assert fairness.status == "warn"
    assert faithfulness.evidence["perfect"] == 1.0
    assert faithfulness.evidence["empty"] == -1.0


@pytest.mark.parametrize("seed", [0, 2])
def test_a_policy_that_was_trained_before_is_left_to_the_evaluation_that_measures_it(seed: int) -> None:
    by_name = checks(load(RECIPES / "dual-tiny.yaml", [*FEW, f"seed={seed}"]))
    assert [check.status for check in by_name] == ["pass", "pass"], by_name


def test_a_workflow_that_suits_every_problem_is_no_trap() -> None:
    (workflow,) = checks(load(RECIPES / "workflow-tiny.yaml", ["tasks.0.items=300"]))
    assert workflow.status == "pass"
    assert "scores" in workflow.message


def test_continuous_rewards_are_no_trap(tmp_path: Path) -> None:
    """The middle number is worth three quarters to everybody, answers to other prompts two thirds."""
    check = function(tmp_path, "near", [str(i) for i in range(80)])
    assert check.status == "pass"


def test_a_base_rate_is_a_trap_where_strata_say_so(tmp_path: Path) -> None:
    answers = ["no" if i % 5 else "yes" for i in range(120)]
    assert function(tmp_path, "right", answers, tasks__0__strata=["answer"]).status == "warn"


def test_without_supervised_steps_the_constant_answer_is_only_named(tmp_path: Path) -> None:
    answers = ["no" if i % 5 else "yes" for i in range(120)]
    check = function(tmp_path, "right", answers, sft=None)
    assert check.status == "pass"
    assert "always answers 'no' scores" in check.message


def test_a_reward_that_one_answer_wins_whatever_is_asked_is_nothing_to_read_for(tmp_path: Path) -> None:
    assert function(tmp_path, "begins", ["t"] * 60, sft=None).status == "pass"


def test_a_constant_answer_that_scores_more_than_perfect_ones_is_told_of(tmp_path: Path) -> None:
    answers = [f"{i}" if i % 2 else f"the number is {i}, of course" for i in range(60)]
    check = function(tmp_path, "long", answers)
    assert check.status == "warn"
    assert "more than perfect ones" in check.message
    assert function(tmp_path, "right", answers).status == "pass"


def test_no_check_where_nobody_wants_to_know(tmp_path: Path) -> None:
    given = recipe(tmp_path, eval__constant=False)
    assert not checks(validate(given))
