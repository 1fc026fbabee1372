"""Two processes draw groups two steps ahead: one run, no staler than that, and none of it lost by an interrupt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sharded_run
from levelhead import train
from small_run import metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
AGES = [0, 1, 2, 2, 2]
CASES = ("ahead", "ahead-full")


@pytest.fixture(scope="module")
def launcher() -> Iterator[sharded_run.Launcher]:
    process = sharded_run.Launcher()
    yield process
    process.close()


@pytest.fixture(scope="module")
def folder(launcher: sharded_run.Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ahead")
    codes = launcher.run("ahead", path, 2)
    assert codes == [0, 0], (path / "ahead-0.err").read_text(encoding="utf-8")[-3000:]
    return path


def told(folder: Path, rank: int) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / f"told-{rank}.json").read_text(encoding="utf-8"))
    return document


def rows(path: Path) -> list[dict[str, Any]]:
    return [row for row in metrics(path) if row["stage"] == "grpo"]


@pytest.mark.parametrize("name", CASES)
def test_no_group_is_older_than_two_steps(folder: Path, name: str) -> None:
    assert [row["staleness/max"] for row in rows(folder / name)] == AGES
    assert [row["staleness/dropped"] for row in rows(folder / name)] == [0] * len(AGES)


def test_importance_weights_are_those_by_hand(folder: Path) -> None:
    for rank in range(2):
        pairs = told(folder, rank)["weights"]
        assert [logged for _, logged in pairs] == pytest.approx([by_hand for by_hand, _ in pairs], abs=1e-5)
        assert all(abs(by_hand - 1) > 1e-4 for by_hand, _ in pairs[1:])


@pytest.mark.parametrize("name", CASES)
def test_an_interrupt_and_a_resumption_lose_nothing(folder: Path, name: str) -> None:
    for rank in range(2):
        said = told(folder, rank)[name]
        assert said["outcomes"] == ["done", "interrupted", "done"]
        assert said["resumed"] == said["undisturbed"]
    assert told(folder, 0)[name]["undisturbed"] == told(folder, 1)[name]["undisturbed"]
    assert metrics(folder / f"{name}-again") == metrics(folder / name)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_make_the_run_of_one(folder: Path, name: str) -> None:
    one = folder / f"{name}-alone"
    train(sharded_run.ahead_recipes(folder)[name], out=one)
    for alone, both in zip(rows(one), rows(folder / name), strict=True):
        assert both["reward"] == pytest.approx(alone["reward"], rel=2e-3, abs=1e-6)
        assert both["loss"] == pytest.approx(alone["loss"], rel=2e-3, abs=2e-5)
        assert both["grad_norm"] == pytest.approx(alone["grad_norm"], rel=2e-3)
