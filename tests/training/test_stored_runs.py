"""Runs that an earlier version began, and left after two of four steps, go on as that version would have gone on.

The archive beside this file holds them: SFT and GRPO with nothing sampled ahead, and GRPO with an adapter one and two
steps ahead, each with the metrics (``whole.jsonl``) of the same run that nobody interrupted.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from levelhead.api import train
from small_run import events, steps

ARCHIVE = Path(__file__).with_name("stored_runs.tar.gz")


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)  # the recipes name their data by relative paths
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)
    return tmp_path


def of_grpo(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["stage"] == "grpo"]


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_run_of_an_earlier_version_goes_on(stored: Path, ahead: int) -> None:
    folder = stored / f"async-{ahead}"
    assert [row["step"] for row in steps(folder, "grpo")] == [1, 2]
    result = train(folder / "recipe.yaml", out=folder, resume=True)
    assert result.outcome == "done"
    assert "resume-differs" not in {event["code"] for event in events(folder)}
    rows, whole = steps(folder, "grpo"), of_grpo(folder / "whole.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for name in ("reward", "loss", "grad_norm", "learning_rate"):
        assert [row[name] for row in rows] == pytest.approx([row[name] for row in whole], rel=1e-3, abs=1e-5)
