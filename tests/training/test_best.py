"""``checkpoints/best`` is the best policy of the whole run, its start included, and everyone says which one it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from levelhead.api import Result, train
from levelhead.cli.main import app
from levelhead.export.write import export
from levelhead.report.outlook import next_steps
from levelhead.report.reading import read_run
from levelhead.training import front as module
from levelhead.training.checkpoint_files import read_state
from levelhead.training.evaluate import TaskResult
from small_run import recipe

KEYS: dict[str, Any] = {
    "sft__steps": 2,
    "grpo__steps": 3,
    "grpo__batch_size": 6,
    "grpo__audit": {"first": 0},
    "eval": {"items": 1, "final_items": 1, "every": 1, "sampling": {"max_new_tokens": 2}, "constant": False},
    "checkpoint__keep_last": 9,
}


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, scores: list[float], **changes: Any) -> Result:
    """A run whose evaluations have these scores, one after another: the start, SFT, and two and the end of GRPO."""
    rest = iter(scores)
    monkeypatch.setattr(module, "selection", lambda results: next(rest))
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)
    return train(recipe(folder, **{**KEYS, **changes}), out=folder / "run")


@pytest.fixture(scope="module")
def of_sft(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run whose best policy is that of SFT."""
    with pytest.MonkeyPatch.context() as patch:
        return run(tmp_path_factory.mktemp("sft"), patch, [0.1, 1.0, 0.5, 0.0, 0.0])


@pytest.mark.parametrize(
    ("scores", "stage", "step"),
    [
        ([0.9, 0.5, 0.5, 0.0, 0.0], "start", 0),
        ([0.1, 0.5, 0.7, 0.0, 0.0], "grpo", 1),
        ([0.1, 0.5, 0.7, 0.7, 0.7], "grpo", 3),
    ],
)
def test_the_best_policy_is_that_of_the_whole_run(
    scores: list[float], stage: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_best(run(tmp_path, monkeypatch, scores), stage, step, max(scores))


def test_the_best_policy_can_be_that_of_sft(of_sft: Result) -> None:
    assert_best(of_sft, "sft", 2, 1.0)


def assert_best(result: Result, stage: str, step: int, score: float) -> None:
    assert result.summary["best"] == {"stage": stage, "step": step}
    saved = read_state(result.folder / "checkpoints" / "best")
    assert (saved.stage if step else "start", saved.step) == (stage, step)
    assert saved.best == score


def test_the_default_export_is_the_policy_from_before_grpo_and_says_so(of_sft: Result, tmp_path: Path) -> None:
    folder = of_sft.folder
    made = export(folder, tmp_path / "out")
    wanted = load_file(folder / "checkpoints" / "step-000002" / "model.safetensors")
    exported = load_file(made.folder / "model.safetensors")
    assert exported.keys() == wanted.keys()
    assert all(exported[name].equal(tensor) for name, tensor in wanted.items())
    assert made.origin == "sft, step 2"
    assert "checkpoint `best` (sft, step 2)" in (made.folder / "README.md").read_text(encoding="utf-8")
    said = CliRunner().invoke(app, ["export", str(folder), "--out", str(tmp_path / "again"), "--json"]).stdout
    assert json.loads(said)["origin"] == "sft, step 2"


@pytest.mark.parametrize(("language", "words"), [("en", "supervised fine-tuning (step 2)"), ("zh", "监督微调")])
def test_the_report_says_that_the_best_policy_is_of_an_earlier_stage(language: Any, words: str, of_sft: Result) -> None:
    folder = of_sft.folder
    (step,) = [step for step in next_steps(read_run(folder), language) if "checkpoints/best" in step.text]
    assert words in step.text
    assert step.command == f"levelhead export {folder}"


def test_a_run_that_goes_on_keeps_the_best_policy_of_before(
    of_sft: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Going back to a step of GRPO does not lose the best policy, which is the one of SFT."""
    shutil.copytree(of_sft.folder, tmp_path / "run")
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)
    rest = iter([0.4, 0.3])
    monkeypatch.setattr(module, "selection", lambda results: next(rest))
    keys = recipe(of_sft.folder.parent, **KEYS)
    result = train(keys, out=tmp_path / "run", resume=True, resume_from="step-000003")
    assert result.summary["best"] == {"stage": "sft", "step": 2}


@pytest.mark.parametrize(
    ("first", "then", "best"),
    [
        ((0.0, 0.1, 0.6, 0.9, 0.2), (0.5, 0.3), 2),  # the checkpoint gone back to is the best of those that are left
        ((0.0, 0.6, 0.1, 0.9, 0.2), (0.2, 0.3), 4),  # the best before it is no longer on disk
        ((0.0, 0.6, 0.1, 0.2, 0.3), (0.2, 0.3), 1),  # it is
    ],
)
def test_the_best_policy_of_a_branch_that_is_left_is_not_the_run_s(
    first: tuple[float, ...], then: tuple[float, ...], best: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {**{key: value for key, value in KEYS.items() if key != "sft__steps"}, "sft": None, "grpo__steps": 4}
    rest = iter(first)
    monkeypatch.setattr(module, "selection", lambda results: next(rest))
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)
    document = recipe(tmp_path, **keys)
    train(document, out=tmp_path / "run")
    rest = iter(then)
    train(document, out=tmp_path / "run", resume=True, resume_from="step-000002")
    folder = tmp_path / "run" / "checkpoints"
    assert read_state(folder / "best").step == best
    assert (folder / "aside-best").is_dir() == (first[3] > first[1])


def test_the_score_of_a_checkpoint_is_the_mean_over_tasks_and_strata_of_the_shared_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worked out once more from the rollouts of the last evaluation."""
    seen: list[tuple[float, dict[str, TaskResult]]] = []
    real = module.selection

    def noted(results: dict[str, TaskResult]) -> float:
        seen.append((real(results), results))
        return seen[-1][0]

    monkeypatch.setattr(module, "selection", noted)
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)
    train(recipe(tmp_path, **{**KEYS, "eval__items": 2, "eval__final_items": 3}), out=tmp_path / "run")
    assert len(seen) == 5
    for score, results in seen:
        means = [fmean(group.rewards[0] for group in list(result.groups)[:2]) for result in results.values()]
        assert score == pytest.approx(fmean(means))
