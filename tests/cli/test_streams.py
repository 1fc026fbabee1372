"""stdout is the command's own: a document and nothing else with ``--json``, and text that any encoding takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import small_run

LOUD = """
import os, sys


def loud(completions, **columns):
    print("from the reward: \\u6c34")
    sys.__stdout__.write("past sys.stdout\\n")
    os.system("echo from a program")
    return [float(len(text) % 3) for text in completions]
"""


def levelhead(*arguments: str, encoding: str = "utf-8", **keys: Any) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONIOENCODING": encoding, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    command = [sys.executable, "-m", "levelhead", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False, **keys)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    rows = small_run.write_rows(tmp_path / "rows.jsonl", [{**row, "kind": "\u8089"} for row in small_run.rows()])
    (tmp_path / "rewards.py").write_text(LOUD, encoding="utf-8")
    task = {"kind": "function", "name": "\u95ee\u7b54", "path": str(rows), "strata": ["kind"]}
    limits = {"sampling": {"max_new_tokens": 8}}
    content = {
        "name": "x",
        "model": {"preset": "tiny", "tiny": small_run.TINY, "dtype": "float32"},
        "tasks": [{**task, "rewards": [f"{tmp_path / 'rewards.py'}:loud"]}],
        "grpo": {"steps": 1, "batch_size": 4, "group_size": 2, **limits},
        "eval": {"final_items": 2, **limits},
    }
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    return file


def test_what_a_reward_prints_stays_out_of_the_document(recipe: Path, tmp_path: Path) -> None:
    done = levelhead("train", str(recipe), "--no-check", "--json", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["outcome"] == "done"
    for text in ("from the reward", "past sys.stdout", "from a program"):
        assert text in done.stderr
        assert text not in done.stdout


def test_a_finished_run_is_finished_where_the_terminal_knows_ascii_alone(recipe: Path, tmp_path: Path) -> None:
    done = levelhead("train", str(recipe), "--no-check", "--out", str(tmp_path / "run"), encoding="ascii")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "from the reward: ?" in done.stdout
    assert done.stdout.isascii()


@pytest.mark.parametrize(
    "command", [["recipes"], ["simulate", "-p", "0.05", "-k", "2,4"], ["train", "{}", "--print-recipe"]]
)
def test_other_commands_print_in_ascii_as_well(recipe: Path, command: list[str]) -> None:
    done = levelhead(*(part.format(recipe) for part in command), encoding="ascii")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


def test_a_document_in_ascii_is_the_same_document(recipe: Path) -> None:
    command = ("train", str(recipe), "--print-recipe", "--json")
    plain, escaped = levelhead(*command), levelhead(*command, encoding="ascii")
    assert escaped.stdout.isascii()
    assert "\\u95ee" in escaped.stdout
    assert json.loads(plain.stdout) == json.loads(escaped.stdout)


def test_a_reader_that_goes_away_is_no_failure_with_a_traceback(recipe: Path) -> None:
    command = f"{sys.executable} -m levelhead train {recipe} --print-recipe --json | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
