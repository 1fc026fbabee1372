"""What differs between two recipes is named key by key, and files are known by their contents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from levelhead.errors import InputError
from levelhead.recipe import dump, parse
from levelhead.recipe.history import History, compare, fingerprints

TEXT = """
model: {preset: tiny}
tasks:
- {kind: function, path: DATA, rewards: ["CODE:reward"]}
- {kind: math}
grpo: {steps: 4}
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "data.jsonl").write_text('{"prompt": "a"}\n', encoding="utf-8")
    (tmp_path / "code.py").write_text("def reward(completions, **_): ...\n", encoding="utf-8")
    return tmp_path


def recipe_in(files: Path, *settings: str) -> Any:
    return parse(TEXT.replace("DATA", str(files / "data.jsonl")).replace("CODE", str(files / "code.py")), settings)


def begun(files: Path) -> History:
    history = History(files)
    (files / "recipe.yaml").write_text(dump(recipe_in(files)), encoding="utf-8")
    (files / "inputs.json").write_text(json.dumps(fingerprints(recipe_in(files))), encoding="utf-8")
    return history


@pytest.mark.parametrize(
    ("before", "after", "keys"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 1.0}, ["a"]),
        ({"a": True}, {"a": 1}, ["a"]),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 2, "c": 2}}, ["a.b"]),
        ({"a": None}, {"a": {"b": 1}}, ["a"]),
        ({"a": {"b": 1}}, {"a": {}}, ["a.b"]),
        ({"a": [1, 2]}, {"a": [1, 3]}, ["a"]),
        ({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}, {"b": 3}]}, ["a.1.b"]),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1}, {"b": 3}]}, ["a.1"]),
        ({"a": ["x", "y"]}, {"a": ["x"]}, ["a.1"]),
        ({"a": [{"b": 1}]}, {"a": None}, ["a"]),
    ],
)
def test_differences_are_named_by_their_keys(before: Any, after: Any, keys: list[str]) -> None:
    assert [change.key for change in compare(before, after)] == keys
    assert [change.key for change in compare(after, before)] == keys


def test_the_recipe_itself_has_not_changed(files: Path) -> None:
    assert begun(files).changes("recipe.yaml", recipe_in(files)) == []


def test_a_changed_key_and_changed_contents_are_both_told(files: Path) -> None:
    history = begun(files)
    (files / "data.jsonl").write_text('{"prompt": "b"}\n', encoding="utf-8")
    (files / "code.py").write_text("def reward(completions, **_): return 1\n", encoding="utf-8")
    told = history.changes("recipe.yaml", recipe_in(files, "grpo.steps=8"))
    assert [(change.key, change.contents) for change in told] == [
        ("grpo.steps", False),
        ("tasks.0.path", True),
        ("tasks.0.rewards.0", True),
    ]
    assert str(told[0]) == "grpo.steps (4 -> 8)"
    assert str(told[1]).startswith("tasks.0.path (contents: ")


def test_a_folder_counts_by_its_data_files(files: Path) -> None:
    folder = files / "folder"
    folder.mkdir()
    (folder / "a.jsonl").write_text("1", encoding="utf-8")
    recipe = parse(f"{{model: {{preset: tiny}}, tasks: [{{kind: fairness, path: {folder}}}]}}")
    before = fingerprints(recipe)
    (folder / "notes.md").write_text("of no account", encoding="utf-8")
    assert fingerprints(recipe) == before != {}
    (folder / "b.jsonl").write_text("2", encoding="utf-8")
    assert fingerprints(recipe) != before


def test_names_that_are_no_files_have_no_fingerprint(tmp_path: Path) -> None:
    long = "x" * 300
    recipe = parse(f"{{model: {{preset: tiny}}, tasks: [{{kind: function, path: {long}}}]}}")
    assert fingerprints(recipe) == {}


def test_the_newest_recipe_is_the_one_with_the_highest_number(tmp_path: Path) -> None:
    history = History(tmp_path)
    assert (history.newest, history.next_names()) == (None, ("recipe.yaml", "inputs.json"))
    for name in ("recipe.yaml", "recipe-2.yaml", "recipe-10.yaml", "recipe-x.yaml", "recipe-02.yaml", "recipe.yaml~"):
        (tmp_path / name).write_text("", encoding="utf-8")
    assert (history.newest, history.next_names()) == ("recipe-10.yaml", ("recipe-11.yaml", "inputs-11.json"))


def test_keys_that_are_younger_than_the_recipe_have_their_default(files: Path) -> None:
    history = begun(files)
    data = yaml.safe_load((files / "recipe.yaml").read_text(encoding="utf-8"))
    del data["guard"], data["grpo"]["audit"]
    (files / "recipe.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    assert history.changes("recipe.yaml", recipe_in(files)) == []


def test_a_recipe_of_a_version_with_other_keys_is_compared_as_it_stands(files: Path) -> None:
    history = begun(files)
    data = yaml.safe_load((files / "recipe.yaml").read_text(encoding="utf-8"))
    data["grpo"]["leash"] = 0.1
    (files / "recipe.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    assert [change.key for change in history.changes("recipe.yaml", recipe_in(files))] == ["grpo.leash"]


@pytest.mark.parametrize("text", ["{", "a: [", "\x00", "!!python/object:x {}"])
def test_a_recipe_that_cannot_be_read_is_named(files: Path, text: str) -> None:
    history = begun(files)
    (files / "recipe.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"recipe\.yaml: cannot be read"):
        history.changes("recipe.yaml", recipe_in(files))
