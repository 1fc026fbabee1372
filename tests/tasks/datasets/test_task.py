"""Public data sets answered directly: perfect answers get 1, others what the official metric gives them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from levelhead.recipe.tasks import TaskRecipe
from levelhead.records import Prompt, Rollout, Score
from levelhead.tasks.base import Answer
from levelhead.tasks.datasets.task import DatasetTask
from levelhead.tasks.registry import make_task
from tasks.datasets import samples

OPEN = {"isolation": "none", "wall_s": 5}
SETS = [("code", "humaneval"), ("code", "mbpp"), ("qa", "hotpotqa"), ("qa", "drop"), ("qa", "truthfulqa")]


def task_of(kind: str, dataset: str, folder: Path, **keys: Any) -> DatasetTask:
    path = samples.write_lines(folder / f"{dataset}.jsonl", samples.SAMPLES[dataset])
    keys |= {"sandbox": OPEN} if kind == "code" else {}
    section = TypeAdapter(TaskRecipe).validate_python(
        {"kind": kind, "dataset": dataset, "path": path, "eval_fraction": 0.5, **keys}
    )
    task = make_task(section)
    assert isinstance(task, DatasetTask)
    return task


def prompts(task: DatasetTask) -> list[Prompt]:
    return [*task.prompts("train", 0), *task.prompts("eval", 0)]


@pytest.mark.parametrize(("kind", "dataset"), SETS)
def test_perfect_answers_are_right_and_empty_ones_are_none(kind: str, dataset: str, tmp_path: Path) -> None:
    task = task_of(kind, dataset, tmp_path)
    assert task.name == kind
    asked = [prompt for prompt in prompts(task) if task.oracle(prompt)]
    assert asked
    perfect = [Answer(prompt, (task.oracle(prompt) or [""])[0]) for prompt in asked]
    scores = asyncio.run(task.score_batch([*perfect, *(Answer(prompt, "") for prompt in asked)]))
    rights, wrongs = scores[: len(asked)], scores[len(asked) :]
    assert all(score is not None and (score.total, score.valid) == (1.0, True) for score in rights)
    assert all(score is not None and (score.total, score.valid) == (0.0, False) for score in wrongs)
    summary = task.summarize([(p, Rollout(p.id, (), s)) for p, s in zip(asked * 2, scores, strict=True)])
    assert (summary["accuracy"], summary["rewards/partial"]) == (0.5, 0.5)


def test_credit_is_for_a_part_or_for_the_whole(tmp_path: Path) -> None:
    partial, exact = (task_of("qa", "hotpotqa", tmp_path, credit=credit) for credit in ("partial", "exact"))
    prompt = next(p for p in prompts(partial) if p.facts["answers"][0][0].lower() not in ("yes", "no"))
    text = f"#### {prompt.facts['answers'][0][0]} perhaps"
    half: Score = partial.score(prompt, text)
    assert 0 < half.total < 1
    assert half.parts == {"correct": 0.0, "partial": half.total}
    assert exact.score(prompt, text).total == 0.0
    assert exact.part_weights == {"correct": 1.0, "partial": 0.0}


def test_a_program_that_fails_some_tests_gets_their_share_and_one_that_hangs_none(tmp_path: Path) -> None:
    task = task_of("code", "humaneval", tmp_path)
    prompt = prompts(task)[0]
    name = (task.oracle(prompt) or [""])[0].partition("def ")[2].partition("(")[0]
    hang = f"```python\ndef {name}(*arguments):\n    while True:\n        pass\n```"
    wrong = f"```python\ndef {name}(*arguments):\n    return None\n```"
    assert task.score(prompt, hang).total == 0.0
    assert task.score(prompt, wrong).parts["correct"] == 0.0
