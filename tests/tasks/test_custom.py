"""A task of the user's own, from a file or from Python, trains as the library's do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from levelhead.api import check, evaluate, train
from levelhead.errors import InputError
from levelhead.recipe import dump, parse, validate
from levelhead.records import Prompt, Score
from levelhead.tasks.base import SingleTurnTask, Split
from levelhead.tasks.presence import require_files
from levelhead.tasks.registry import make_task
from small_run import metrics, recipe, same_weights, steps

MINE = """
from typing import Annotated

from pydantic import Field

from levelhead.records import Prompt, Score
from levelhead.tasks.base import SingleTurnTask


class Counting(SingleTurnTask):
    def __init__(self, name: str, count: Annotated[int, Field(ge=4)] = 12, eval_fraction: float = 0.1):
        self.name = name
        held = max(2, round(count * eval_fraction))
        self.sides = {"eval": range(held), "train": range(held, count)}

    def prompts(self, split, seed):
        for i in self.sides[split]:
            message = {"role": "user", "content": f"question {i}: how many?"}
            yield Prompt(f"{split}/{i}", self.name, (message,), facts={"count": i})

    def oracle(self, prompt):
        return [str(prompt.facts["count"])]

    def score(self, prompt, text):
        right = float(text.strip() == str(prompt.facts["count"]))
        return Score(right + len(text) % 5 / 8, {"right": right, "length": len(text) % 5 / 8}, valid=bool(text))


class Half(SingleTurnTask):
    def prompts(self, split, seed):
        yield from ()


class Nothing:
    name = "mine"


class OtherName(Counting):
    def __init__(self):
        super().__init__("counting")


class Raises(Counting):
    def __init__(self):
        raise RuntimeError("no data today")
"""
QUICK: dict[str, Any] = {
    "sft__steps": 1,
    "eval__final_items": 2,
    "eval__constant": False,
    "grpo__steps": 2,
    "grpo__audit__first": 0,
}


class Echo(SingleTurnTask):
    """A task that is made in Python."""

    def __init__(self, name: str) -> None:
        self.name = name

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        for i in range(8):
            message = {"role": "user", "content": f"question {i}: say {seed % 1}"}
            yield Prompt(f"{split}/{i}", self.name, (message,))

    def oracle(self, prompt: Prompt) -> list[str] | None:
        return ["the number"]

    def score(self, prompt: Prompt, text: str) -> Score:
        return Score(len(text) % 7 / 6)


@pytest.fixture(autouse=True)
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the recipe's data and ``mine.py``, which the command is given in."""
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


def mine(name: str, **settings: Any) -> dict[str, Any]:
    return {"kind": "custom", "name": "mine", "path": f"mine.py:{name}", "settings": settings}


def read(folder: Path, section: dict[str, Any] | None) -> Any:
    """The small recipe with its second task replaced, or taken out."""
    data = recipe(folder, **QUICK)
    data["tasks"] = [data["tasks"][0], *([section] if section else [])]
    return validate(data)


def test_a_task_from_a_file_trains_goes_on_and_is_scored(tmp_path: Path) -> None:
    given = read(tmp_path, {**mine("Counting", count=16), "eval_fraction": 0.25, "weight": 2.0})
    result = train(given, out=tmp_path / "run")
    assert parse((tmp_path / "run" / "recipe.yaml").read_text(encoding="utf-8")) == given
    rows = steps(result.folder, "grpo")
    assert {"reward/mine", "rewards/mine/length/mean"} <= rows[0].keys()
    assert result.summary["tasks"].keys() == {"one", "mine"}
    assert any("tasks.1.path" in line for line in json.loads((tmp_path / "run" / "inputs.json").read_text()))
    longer = given.model_copy(update={"grpo": given.grpo.model_copy(update={"steps": 3})})
    more = train(longer, out=tmp_path / "run", resume=True, accept_changes=["grpo.steps"])
    assert len(steps(more.folder, "grpo")) == 3
    last = tmp_path / "run" / "checkpoints" / "step-000004"
    assert evaluate(longer, last, items=2, sampled=False)["greedy"].keys() == {"one", "mine"}


def test_tasks_given_in_python_are_added_to_the_recipe(tmp_path: Path) -> None:
    given = read(tmp_path, None)
    result = train(given, out=tmp_path / "run", tasks=[Echo("echo")])
    written = parse((tmp_path / "run" / "recipe.yaml").read_text(encoding="utf-8"))
    assert [(task.name, task.kind) for task in written.tasks] == [("one", "function"), ("echo", "custom")]
    assert "reward/echo" in steps(result.folder, "grpo")[0]
    with pytest.raises(
        InputError, match=r"task 'echo' was given in Python: give it again, as in train\(recipe, tasks="
    ):
        train(written, out=tmp_path / "run", resume=True)
    again = train(written, out=tmp_path / "again", tasks=[Echo("echo")])
    assert metrics(again.folder) == metrics(result.folder)
    assert same_weights(again.model, result.model)


def test_a_recipe_without_tasks_takes_those_of_python(tmp_path: Path) -> None:
    data = recipe(tmp_path, **QUICK)
    del data["tasks"]
    report = check({**data, "grpo": None}, tasks=[Echo("echo")])
    assert report.checks


def test_a_section_for_a_python_task_keeps_its_weight_and_place(tmp_path: Path) -> None:
    from levelhead.api import resolve

    section = {"kind": "custom", "name": "echo", "weight": 3.0}
    resolved = resolve({**recipe(tmp_path), "tasks": [section]}, [Echo("echo"), Echo("other")])
    assert [(task.name, task.weight) for task in resolved.tasks] == [("echo", 3.0), ("other", 1.0)]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (mine("Absent"), r"mine.py: there is no class 'Absent'; it defines: Counting, Half, Nothing"),
        (mine("Counting", count=2), r"mine.py:Counting: tasks\[\].settings.count must be at least 4, got 2"),
        (mine("Counting", counts=8), r"no setting 'tasks\[\].settings.counts'; it takes name, count, eval_fraction"),
        (mine("Half"), r"mine.py:Half: a task needs the method 'score' \(tasks\[\].path\)"),
        (mine("Nothing"), r"mine.py:Nothing: a task derives from .*SingleTurnTask"),
        (mine("OtherName"), r"mine.py:OtherName: it calls itself 'counting', and the recipe 'mine'; take the argument"),
        (mine("Raises"), r"mine.py:Raises: making it raised RuntimeError: no data today \(task 'mine'\)"),
        ({"kind": "custom"}, r"task 'custom' was given in Python"),
    ],
)
def test_a_task_that_does_not_fit_is_told_in_one_line(tmp_path: Path, section: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        make_task(read(tmp_path, section).tasks[1])
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    given = read(tmp_path, {**mine("Counting"), "path": "gone.py:Counting"})
    assert parse(dump(given)) == given
    with pytest.raises(InputError, match=r"gone.py: no such file \(tasks\[\].path, seen from"):
        require_files(given)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([Echo("a"), Echo("a")], r"tasks=\[...\]: two tasks are called 'a'"),
        ([object()], r"tasks=\[object\]: a task derives from .*Task"),
    ],
)
def test_python_tasks_that_do_not_fit_are_told(tmp_path: Path, tasks: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        train(recipe(tmp_path), out=tmp_path / "run", tasks=tasks)
