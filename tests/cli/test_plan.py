"""``levelhead check --plan`` on the terminal and as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from levelhead.cli import main as cli
from levelhead.errors import InputError

RECIPE = str(Path(__file__).parents[2] / "recipes" / "workflow-tiny.yaml")
SRC = str(Path(__file__).parents[2] / "src")


def run(*options: str) -> tuple[int, str]:
    shared = ("--plan", "--prompt-tokens", "100", "--set", "model.tiny.layers=1")
    result = CliRunner().invoke(cli.app, ["check", RECIPE, *shared, *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_a_plan_that_fits_leaves_with_0_and_prints_a_table() -> None:
    code, text = run("--gpu", "80GB")
    assert code == 0
    assert "activations" in text
    assert "fits" in text


@pytest.mark.slow
def test_a_plan_that_does_not_fit_leaves_with_1_and_names_what_to_change() -> None:
    code, text = run("--gpu", "1.25GB")
    assert code == 1
    assert "change first: grpo.tokens_per_microbatch" in text


def test_processes_are_asked_for_by_number_or_counted_by_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = ("--set", "distributed.shard=full", "--gpu", "80GB")
    _, alone = run(*shared)
    assert "--processes N plans one of N" in " ".join(alone.split())
    _, text = run(*shared, "--processes", "4")
    assert "each of 4 processes" in " ".join(text.split())
    monkeypatch.setenv("WORLD_SIZE", "4")
    _, text = run(*shared, "--json")
    assert json.loads(text)["processes"] == 4


@pytest.mark.slow
def test_json_is_one_document() -> None:
    code, text = run("--gpu", "1.25GB", "--json")
    document = json.loads(text)
    assert code == 1
    assert document["status"] == "does not fit"
    assert document["change"]["fits"]
    assert document["total"] == max(document["phases"].values())


@pytest.mark.parametrize("arguments", [["--plan", "--gpu", "80XB"], ["--gpu", "80GB"], ["--processes", "2"]])
def test_bad_input_is_refused(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli.app, ["check", RECIPE, *arguments])
    assert isinstance(result.exception, InputError)


def test_a_plans_recipe_is_read_before_torch_is_imported(tmp_path: Path) -> None:
    """Pydantic looks each section's docstrings up among all modules: behind torch that takes two seconds more."""
    (tmp_path / "bad.yaml").write_text("name: p\nmodle: {preset: tiny}\n", encoding="utf-8")
    code = "import sys; sys.modules['torch'] = None; from levelhead.cli.main import main; main()"
    command = [sys.executable, "-c", code, "check", str(tmp_path / "bad.yaml"), "--plan"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": SRC})
    assert "modle" in done.stderr
    assert "torch" not in done.stderr
