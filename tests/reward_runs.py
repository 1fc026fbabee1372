"""Recipes with reward functions of their own, and runs of them from the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from levelhead.cli.main import main
from small_run import recipe

SMALL = {"sft": None, "eval__final_items": 2, "grpo__audit__first": 0, "eval__constant": False}


def one_task(folder: Path, source: str, *functions: str, **changes: Any) -> dict[str, Any]:
    """A recipe of one task with reward functions of its own."""
    given = recipe(folder, **{**SMALL, **changes})
    file = folder / "mine.py"
    file.write_text(source, encoding="utf-8")
    rewards = [f"{file}:{name}" for name in functions or ("reward",)]
    given["tasks"] = [{**given["tasks"][0], "rewards": rewards}]
    return given


def run_command(
    folder: Path,
    given: dict[str, Any],
    *options: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> tuple[int, str]:
    """Train a recipe from the command line, in ``run`` below a folder; returns exit code and stderr."""
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(given), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["levelhead", "train", str(path), "--out", str(folder / "run"), *options])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0), capsys.readouterr().err
