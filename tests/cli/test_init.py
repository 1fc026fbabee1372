"""``levelhead init`` and ``levelhead recipes``: from one's own data, or what ships, to a recipe that trains."""

from __future__ import annotations

import importlib
import json
import os
import pty
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from levelhead.cli import main as cli
from levelhead.diagnosis.verdict import FEW
from levelhead.errors import InputError
from levelhead.preflight.run import dry_run
from levelhead.recipe import load
from levelhead.recipe.shipped import shipped
from levelhead.scaffold.columns import likely_kind
from levelhead.scaffold.write import InitOptions, plan
from levelhead.tasks.function import FunctionTask
from levelhead.tasks.function.loading import load_rewards

ROWS = [{"question": f"What is {n} + 3?", "answer": f"{n} + 3 is {n + 3}.\n#### {n + 3}"} for n in range(12)]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def data(rows: list[dict[str, Any]], name: str = "sums.jsonl") -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return name


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, list(arguments))


def test_a_recipe_of_ones_own_data_is_whole_short_commented_and_trains() -> None:
    result = run("init", "--data", data(ROWS), "--json")
    told = json.loads(result.stdout)
    assert (told["prompt"], told["answer"], told["rows"]) == ("question", "answer", 12)
    assert told["reward"] == "sums_rewards.py:right_number"
    assert told["context"] == 1024
    lines = Path("sums.yaml").read_text(encoding="utf-8").splitlines()
    assert 12 <= sum(not line.startswith("#") for line in lines) <= 20
    assert sum("#" in line for line in lines) >= 4
    facts = dry_run(load("sums.yaml"))
    assert facts["first_batch_prompt_tokens"]["max"] <= 1024


def test_the_reward_file_comes_with_a_test_that_passes_and_that_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    run("init", "--data", data(ROWS))
    test = "test_right_answers_get_more_than_wrong_and_empty_ones"
    monkeypatch.syspath_prepend(Path())
    runpy.run_path("test_sums_rewards.py")[test]()
    file = Path("sums_rewards.py")
    broken = file.read_text(encoding="utf-8").replace("float(mine is not None", "1 - float(mine is not None")
    file.write_text(broken + "# another size, for the cache of compiled files\n", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "sums_rewards")
    importlib.invalidate_caches()
    with pytest.raises(AssertionError):
        runpy.run_path("test_sums_rewards.py")[test]()


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        (["#### 1,000", "so \\boxed{2}", "$3"], "number"),
        (["Paris", "New York", "no"], "exact"),
        (["a long text of more than six words in all"] * 3, "contains"),
    ],
)
def test_the_reward_goes_by_what_answers_look_like(answers: list[str], kind: str) -> None:
    assert likely_kind(answers) == kind


@pytest.mark.parametrize("kind", ["number", "exact", "contains", "json"])
def test_every_reward_that_is_written_tells_right_from_wrong(kind: str) -> None:
    rows = [{"prompt": f"Say {n}.", "answer": f"{n}"} for n in range(5)]
    reward = plan(InitOptions("x", "base-tiny", data(rows), kind))
    reward.write()
    (function,) = load_rewards([reward.reward], None, ["answer"], "x")
    right = '{"a": 1}' if kind == "json" else "3"
    assert function.function(completions=[right, "seven", ""], answer=["3"] * 3) == [1.0, 0.0, 0.0]


def test_numbers_that_nobody_asked_for_are_not_right() -> None:
    made = plan(InitOptions("x", "base-tiny", data(ROWS), "number"))
    made.write()
    (function,) = load_rewards([made.reward], None, ["answer"], "x")
    assert function.function(completions=["no number"], answer=["none either"]) == [0.0]


def test_a_base_model_gets_a_chat_template(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from levelhead.scaffold.model import preset_folder

    folder = Path(preset_folder("base-tiny"))
    for file in folder.iterdir():
        if file.name != "chat_template.jinja" and file.is_file():
            (tmp_path / "base").mkdir(exist_ok=True)
            (tmp_path / "base" / file.name).symlink_to(file)
    assert not AutoTokenizer.from_pretrained(tmp_path / "base").chat_template
    plan(InitOptions("sums", str(tmp_path / "base"), data(ROWS))).write()
    assert yaml.safe_load(Path("sums.yaml").read_text())["model"]["chat_template"] == "sums.jinja"
    assert dry_run(load("sums.yaml"))["context"] == 1024


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give --data FILE"),
        (["--data", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["--data", "sums.jsonl", "--answer", "reply"], "--answer reply: sums.jsonl has no such column"),
        (["--data", "sums.jsonl", "--model", "./nowhere"], "--model ./nowhere: no such folder"),
        (["--data", "sums.jsonl", "--reward", "nice"], "--reward nice: give one of number, exact, contains, json"),
        (["--data", "plain.jsonl"], "plain.jsonl: no column of right answers"),
        (["--data", "wide.jsonl"], "wide.jsonl: which column is the prompt? give --prompt; the columns are: a, b"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_written(arguments: list[str], said: str) -> None:
    data(ROWS)
    data([{"prompt": "Hello."}] * 3, "plain.jsonl")
    data([{"a": "x", "b": "y"}] * 3, "wide.jsonl")
    before = sorted(Path().iterdir())
    error = run("init", *arguments).exception
    assert isinstance(error, InputError)
    assert said in str(error)
    assert sorted(Path().iterdir()) == before


def test_files_that_are_there_are_left_alone() -> None:
    Path("test_sums_rewards.py").write_text("mine", encoding="utf-8")
    error = run("init", "--data", data(ROWS)).exception
    assert "test_sums_rewards.py: is there already" in str(error)
    assert not Path("sums.yaml").exists()
    assert Path("test_sums_rewards.py").read_text(encoding="utf-8") == "mine"


def test_at_a_terminal_it_asks_for_what_is_left_open() -> None:
    data(ROWS)
    mine, theirs = pty.openpty()
    asked = subprocess.Popen([sys.executable, "-m", "levelhead", "init"], stdin=theirs, stderr=subprocess.PIPE)
    os.write(mine, b"sums.jsonl\n\n\n")
    _, error = asked.communicate(timeout=60)
    os.close(mine)
    os.close(theirs)
    assert asked.returncode == 0
    assert b"Data file" in error
    assert b"base-tiny" in error
    assert yaml.safe_load(Path("sums.yaml").read_text())["model"]["preset"] == "base-tiny"


def test_recipes_that_ship_are_listed_with_a_line_each() -> None:
    told = json.loads(run("recipes", "--json").stdout)
    assert {"dual-tiny", "function-qwen2.5-0.5b", "base-tiny/1"} <= {recipe["name"] for recipe in told}
    assert all(recipe["about"] for recipe in told)
    assert "dual-tiny" in run("recipes").stdout


def test_a_recipe_that_ships_is_known_by_its_name_to_every_command() -> None:
    for name in ("dual-tiny", "dual-tiny.yaml", "base-tiny/2"):
        printed = run("train", name, "--print-recipe", "--set", "seed=7")
        assert yaml.safe_load(printed.stdout)["seed"] == 7
    assert all(load(recipe.name) for recipe in shipped())


def test_a_misspelt_name_of_a_recipe_is_hinted_at() -> None:
    with pytest.raises(InputError, match="dual-tyni: no such recipe; did you mean 'dual-tiny', which ships"):
        load("dual-tyni")


def test_a_recipe_of_the_users_own_comes_before_one_that_ships() -> None:
    Path("dual-tiny").write_text("name: mine\nmodel: {preset: tiny}\ntasks: [{kind: math}]\n", encoding="utf-8")
    assert load("dual-tiny").name == "mine"


def test_a_copy_names_the_copies_of_its_reward_files() -> None:
    told = json.loads(run("recipes", "function-qwen2.5-0.5b", "--to", "mine", "--json").stdout)
    assert told["files"] == ["mine/function-qwen2.5-0.5b.yaml", "mine/rewards_gsm8k.py"]
    (task,) = load("mine/function-qwen2.5-0.5b.yaml").tasks
    assert all(Path(entry.split(":")[0]).is_file() for entry in task.rewards)  # type: ignore[union-attr]
    error = run("recipes", "function-qwen2.5-0.5b", "--to", "mine").exception
    assert "is there already" in str(error)


def test_files_that_are_there_are_told_before_the_model_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    write = importlib.import_module("levelhead.scaffold.write")

    def look(*_: Any) -> Any:
        raise AssertionError("the model was looked at")

    monkeypatch.setattr(write, "look_at", look)
    for name in ("sums.yaml", "sums_rewards.py", "test_sums_rewards.py"):
        Path(name).write_text("mine", encoding="utf-8")
        with pytest.raises(InputError, match=f"^{name}: is there already"):
            plan(InitOptions("sums", "base-tiny", data(ROWS)))
        Path(name).unlink()


@pytest.mark.parametrize("n", [80, 120, 240, 1000])
def test_enough_is_held_out_to_judge_by(n: int) -> None:
    rows = [{"question": f"What is {i} + 3?", "answer": str(i + 3)} for i in range(n)]
    run("init", "--data", data(rows))
    task = FunctionTask(load("sums.yaml").tasks[0])
    assert len(list(task.prompts("eval", 0))) >= FEW
    assert len(list(task.prompts("train", 0))) >= n / 3
