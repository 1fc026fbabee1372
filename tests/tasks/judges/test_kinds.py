"""Every kind of single-answer task takes judges, and goes on doing what it does besides scoring."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from judge_hosts import Hosts, even_answers, grades
from levelhead.errors import InputError
from levelhead.objective.task_weights import InverseLoss
from levelhead.recipe.load import validate
from levelhead.recipe.tasks import Math, TaskRecipe
from levelhead.tasks.base import Answer, SingleTurnTask
from levelhead.tasks.registry import function_tasks, make_task
from levelhead.training.advantages import declared_rewards
from levelhead.training.coefficients import check_task_weights, facts_of

GRADER = "def grade(question, answer, reference):\n    return 0.4\n"
REWARDS = "def right(prompts, completions, completion_ids, **columns):\n    return [1.0 for _ in completions]\n"


def make(tmp_path: Path, **keys: Any) -> SingleTurnTask:
    (tmp_path / "mine.py").write_text(GRADER + REWARDS)
    judges = {"members": [{"provider": "function", "path": f"{tmp_path}/mine.py:grade"}], "weight": 1.0}
    section: Any = TypeAdapter(TaskRecipe).validate_python({"judges": judges, **keys})
    task = make_task(section)
    assert isinstance(task, SingleTurnTask)
    assert task.grader is not None
    return task


def worth(task: SingleTurnTask, text: str | None = None) -> float:
    prompt = next(task.prompts("train", 0))
    (score,) = asyncio.run(
        task.rewarded([Answer(prompt, text if text is not None else (task.oracle(prompt) or [""])[0])])
    )
    assert score is not None
    return score.total


def test_math_is_judged(tmp_path: Path) -> None:
    assert worth(make(tmp_path, kind="math", items=20)) == pytest.approx(0.4)


def test_workflows_are_judged_and_demonstrated(tmp_path: Path) -> None:
    task = make(tmp_path, kind="workflow", items=30)
    assert task.demonstrates
    prompt = next(task.prompts("train", 0))
    (pair,) = asyncio.run(task.demonstrate(prompt))
    assert [pair[1]] == task.oracle(prompt)
    assert 0 < worth(task) <= 0.4


def test_functions_are_judged_and_tallied(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"prompt": f"q{n}"}) for n in range(30)))
    task = make(tmp_path, kind="function", path=str(rows), rewards=[f"{tmp_path}/mine.py:right"])
    assert worth(task, "anything") == pytest.approx(0.4)
    tally = task.drain_tally()
    assert tally is not None
    assert tally.answers == 1


def test_functions_given_in_python_are_judged_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GRADER)
    judges = {"members": [{"provider": "function", "path": f"{tmp_path}/mine.py:grade"}], "weight": 1.0}
    recipe = validate(
        {
            "name": "t",
            "model": {"preset": "tiny"},
            "grpo": {"steps": 1},
            "tasks": [{"kind": "function", "judges": judges}],
        }
    )
    rows = [{"prompt": f"q{n}"} for n in range(30)]
    task = function_tasks(recipe, rows, lambda completions, **_: [1.0 for _ in completions])["function"]
    assert worth(task, "anything") == pytest.approx(0.4)


def test_prompts_and_a_rubric_are_a_task(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"prompt": f"q{n}"}) for n in range(30)))
    task = make(tmp_path, kind="judge", path=str(rows))
    assert task.name == "judge"
    assert worth(task, "anything") == pytest.approx(0.4)
    assert worth(task, "  ") == 0
    assert task.rules is None
    assert len(list(itertools.islice(task.prompts("train", 0), 5))) == 5


def test_a_judge_task_without_judges_or_prompts_is_bad_input(tmp_path: Path) -> None:
    from levelhead.errors import InputError

    with pytest.raises(ValueError, match="give it a judge or judges"):
        TypeAdapter(TaskRecipe).validate_python({"kind": "judge", "path": "x.jsonl"})
    with pytest.raises(InputError, match=r"tasks\[\]\.path: a task of kind judge needs a file of prompts"):
        make(tmp_path, kind="judge")


def test_a_judge_task_that_compares_with_a_reference_needs_one() -> None:
    judges = {"members": [{"base_url": "http://x/v1", "model": "m"}], "pairwise": {"kind": "reference"}}
    section = {"kind": "judge", "path": "x.jsonl", "judges": judges}
    with pytest.raises(ValueError, match="name a column of them in oracle"):
        TypeAdapter(TaskRecipe).validate_python(section)
    assert TypeAdapter(TaskRecipe).validate_python({**section, "oracle": "answer"})


def test_judge_and_judges_together_are_bad_input() -> None:
    one = {"base_url": "http://x/v1", "model": "m"}
    with pytest.raises(ValueError, match="judge and judges are both set"):
        Math.model_validate({"kind": "math", "judge": one, "judges": {"members": [one]}})


def parsing(tmp_path: Path, signature: str, reply: str) -> tuple[SingleTurnTask, list[float | None]]:
    """A judge whose verdicts a function of the user's reads."""
    (tmp_path / "mine.py").write_text(
        f"import re\ndef read({signature}):\n    found = re.findall('SCORE=([0-9.]+)', text)\n"
        "    return float(found[-1]) if found else None\n"
    )
    hosts = Hosts({"judge": reply})
    member = {"parser": f"{tmp_path / 'mine.py'}:read"}
    task = hosts.task(member=member)
    return task, grades(task, even_answers(task, 1, 1))


def test_a_parser_of_the_users_that_takes_no_mark_works_as_before_and_is_warned_of(tmp_path: Path) -> None:
    task, found = parsing(tmp_path, "text", "Sound.\nSCORE=0.5")
    assert found == [0.5]
    (event,) = task.drain_events(1)
    assert "members[0].parser" in event.message
    assert "takes a reply alone" in event.message


def test_a_parser_that_takes_the_mark_is_called_with_it(tmp_path: Path) -> None:
    task, found = parsing(tmp_path, "text, mark", "Sound.\nSCORE=0.5")
    assert found == [0.5]
    assert task.drain_events(1) == []


@pytest.mark.parametrize("kind", ["fairness", "faithfulness", "math"])
def test_a_judge_takes_nothing_from_what_its_task_declares(kind: str) -> None:
    """Judging is a step of scoring: range, parts, lexicon and bounds of a judged task are the task's own."""
    section = {"kind": kind, "items": 40}
    judge = {"judge": {"base_url": "http://judge.test/v1", "model": "m"}}
    plain, judged = (make_task(TypeAdapter(TaskRecipe).validate_python({**section, **more})) for more in ({}, judge))
    prompt = next(plain.prompts("train", 0))
    for name in ("reward_range", "part_weights", "shares", "guesses", "demonstrates", "has_baselines"):
        assert getattr(judged, name) == getattr(plain, name), name
    for name in ("strata", "form", "oracle", "oracle_bytes", "kind_of"):
        assert getattr(judged, name)(prompt) == getattr(plain, name)(prompt), name
    assert list(judged.lexicon()) == list(plain.lexicon())
    assert list(judged.constants()) == list(plain.constants())
    assert plain.reward_range is not None
    assert type(judged) is type(plain)
    assert declared_rewards([judged]) == declared_rewards([plain]) | {"judge"}


def test_inverse_loss_knows_the_range_of_a_judged_task() -> None:
    section = {"kind": "fairness", "items": 40, "judge": {"base_url": "http://judge.test/v1", "model": "m"}}
    task = make_task(TypeAdapter(TaskRecipe).validate_python(section))
    facts = facts_of({"fairness": 1.0, "other": 1.0}, {"fairness": task, "other": task})
    assert facts.most == {"fairness": 1.0, "other": 1.0}
    check_task_weights(InverseLoss(), facts)
    with pytest.raises(InputError, match="declares no most reward"):
        check_task_weights(InverseLoss(), facts_of({"fairness": 1.0, "other": 1.0}))
