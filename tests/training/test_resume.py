"""Promise 9: the same seed gives the same run, interrupted or not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from levelhead.api import Result, train
from levelhead.policy.manifest import step_folders
from levelhead.records import Decision, StepRecord
from levelhead.training.checkpoint_files import TRAINING
from levelhead.training.optim import Updater
from night import by_night
from small_run import events, metrics, recipe, same_weights, steps

VARIANTS: dict[str, dict[str, Any]] = {
    "full": {"grpo__merge": {"kind": "sum", "monitor_every": 3}},
    "bfloat16": {"model__dtype": "bfloat16"},
    "lora": {"model__lora": {"r": 2, "modules_to_save": []}},
    "everything": {
        "tasks__0__shaping": {"zscore": {"decay": 0.5}, "length": {"kind": "per_token", "coef": 0.1}},
        "grpo__advantage__kind": "dr_grpo",
        "grpo__epochs": 2,
        "grpo__loss": {"kind": "clip_cov", "top_entropy": 0.5, "importance": "token_truncate", "cov_low": -9.0},
        "grpo__kl": {"where": "reward", "estimator": "k1", "controller": {"kind": "lagrangian", "target": 0.01}},
        "grpo__entropy": {"coef": 0.01, "controller": {"kind": "entropy_target", "target": 3.0}},
        "grpo__merge": {"kind": "pcgrad"},
        "eval__every": 2,
        "eval__final_items": 3,
        "grpo__sampling__temperature_schedule": "linear",
        "grpo__sampling__temperature_final": 0.7,
    },
    "curriculum": {
        "grpo__curriculum": {"kind": "learnability", "floor": 0.2, "half_life": 3.0},
        "grpo__dynamic_sampling": 2,
    },
    "ahead": {
        "grpo__async": 1,
        "model__lora": {"r": 2, "modules_to_save": []},
        "grpo__curriculum": {"kind": "learnability", "floor": 0.2, "half_life": 3.0},
        "grpo__dynamic_sampling": 2,
        "grpo__sampling__temperature_schedule": "linear",
        "grpo__sampling__temperature_final": 0.7,
    },
}
MOMENTS = {"sft": ("sft", 3), "first-grpo": ("grpo", 1), "grpo": ("grpo", 4)}
"""Stage and step in which a run dies; checkpoints come every two steps."""
BY_DAY = {
    ("sft", "lora"),
    ("first-grpo", "ahead"),
    ("first-grpo", "everything"),
    *(("grpo", name) for name in VARIANTS),
}
DEATHS = [
    pytest.param(moment, variant, marks=() if (moment, variant) in BY_DAY else by_night)
    for moment in sorted(MOMENTS)
    for variant in sorted(VARIANTS)
]


class Killed(BaseException):
    """Stands in for a process that dies: nothing in the trainer catches it."""


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Result]:
    """A run of each variant that was left alone."""
    done: dict[str, Result] = {}

    def run(variant: str) -> Result:
        if variant not in done:
            done[variant] = train(
                made(tmp_path_factory.mktemp(variant), variant), out=tmp_path_factory.mktemp("run") / "r"
            )
        return done[variant]

    return run


def made(folder: Path, variant: str, **changes: Any) -> dict[str, Any]:
    if variant == "curriculum":  # one task never has contrast, so that its groups are drawn again
        changes["tasks__1__rewards"] = [f"{folder / 'rewards.py'}:same"]
    return recipe(folder, **VARIANTS[variant], checkpoint__every=2, **changes)


def die_at(monkeypatch: pytest.MonkeyPatch, stage: str, step: int) -> None:
    """Die at the end of a step: gradients are there, weights have moved in its earlier updates."""
    real = Updater.step

    def update(self: Updater) -> None:
        # SFT has three updates in all; GRPO has four steps of several.
        each = 1 if self.steps == 3 else self.steps // 4
        if self.done + 1 == step * each and (self.steps == 3) == (stage == "sft"):
            raise Killed
        real(self)

    monkeypatch.setattr(Updater, "step", update)


@pytest.mark.parametrize(  # by day, those that are interrupted prove it of the others
    "variant", [pytest.param(name, marks=() if name == "full" else by_night) for name in sorted(VARIANTS)]
)
def test_two_runs_of_one_seed_are_identical(variant: str, undisturbed: Callable[[str], Result], tmp_path: Path) -> None:
    first = undisturbed(variant)
    second = train(made(tmp_path, variant), out=tmp_path / "run")
    assert first.outcome == second.outcome == "done"
    assert metrics(first.folder) == metrics(second.folder)
    assert same_weights(first.model, second.model)
    assert len(steps(first.folder, "sft")) == 3
    assert len(steps(first.folder, "grpo")) == 4


@pytest.mark.parametrize(("moment", "variant"), DEATHS)
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(
    variant: str, moment: str, undisturbed: Callable[[str], Result], tmp_path: Path
) -> None:
    wanted = undisturbed(variant)
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, *MOMENTS[moment])
        with pytest.raises(Killed):
            train(made(tmp_path, variant), out=tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 9, "stage": "gr')
    resumed = train(made(tmp_path, variant), out=tmp_path / "run", resume=True)
    assert resumed.outcome == "done"
    assert metrics(resumed.folder) == metrics(wanted.folder)
    assert same_weights(resumed.model, wanted.model)
    assert resumed.summary["tasks"] == wanted.summary["tasks"]
    assert counted(resumed.folder) == counted(wanted.folder)


def counted(folder: Path) -> dict[str, Any]:
    """Return the counters of the queue of groups in the newest checkpoint."""
    newest = step_folders(folder / "checkpoints")[-1]
    state = torch.load(newest / TRAINING, weights_only=True)["trainer"]["batches"]
    return {name: state[name] for name in ("begun", "planned", "starts")}


def test_a_curriculum_leaves_what_has_no_contrast(undisturbed: Callable[[str], Result]) -> None:
    rows = steps(undisturbed("curriculum").folder, "grpo")
    assert all(row["dynamic_sampling/redrawn"] > 0 for row in rows)
    assert rows[-1]["curriculum/share/two"] < rows[0]["curriculum/share/two"]
    assert all(row["num_rollouts"] > 12 for row in rows)


def test_another_seed_gives_another_run(undisturbed: Callable[[str], Result], tmp_path: Path) -> None:
    other = train(made(tmp_path, "full", seed=4), out=tmp_path / "run")
    assert not same_weights(other.model, undisturbed("full").model)


class Interrupts:
    """An observer that presses Ctrl-C after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def before_update(self, record: StepRecord) -> list[Decision]:
        return []

    def after_update(self, record: StepRecord) -> list[Decision]:
        if record.step == self.step:
            signal.raise_signal(signal.SIGINT)
        return []


def test_an_interrupt_saves_after_the_step_and_the_run_goes_on(
    undisturbed: Callable[[str], Result], tmp_path: Path
) -> None:
    given = made(tmp_path, "full")
    result = train(given, out=tmp_path / "run", observers=[Interrupts(3)])
    assert result.outcome == "interrupted"
    assert [row["step"] for row in steps(result.folder, "grpo")] == [1, 2, 3]
    assert max((result.folder / "checkpoints").glob("step-*")).name == "step-000006"
    resumed = train(given, out=tmp_path / "run", resume=True)
    assert metrics(resumed.folder) == metrics(undisturbed("full").folder)
    assert same_weights(resumed.model, undisturbed("full").model)


def test_an_interrupted_command_leaves_with_130_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from levelhead.cli.main import main
    from levelhead.training.sft import SftTrainer

    real = SftTrainer.step

    def step(self: SftTrainer, step: int) -> Any:
        if step == 2:
            signal.raise_signal(signal.SIGINT)
        return real(self, step)

    monkeypatch.setattr(SftTrainer, "step", step)
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(made(tmp_path, "full")), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["levelhead", "train", str(path), "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert "--resume" in last
    assert str(tmp_path / "run") in last
    assert [row["step"] for row in steps(tmp_path / "run", "sft")] == [1, 2]


def test_only_the_last_checkpoints_are_kept_and_the_best(undisturbed: Callable[[str], Result]) -> None:
    folders = sorted(path.name for path in (undisturbed("full").folder / "checkpoints").iterdir())
    assert folders == ["best", "reference", "step-000005", "step-000007"]


def test_a_quiet_run_has_no_events(undisturbed: Callable[[str], Result]) -> None:
    assert events(undisturbed("full").folder) == []


@pytest.mark.slow
def test_a_killed_process_goes_on_as_if_nothing_had_happened(
    undisturbed: Callable[[str], Result], tmp_path: Path
) -> None:
    wanted = undisturbed("full")
    path, run = tmp_path / "recipe.yaml", tmp_path / "run"
    path.write_text(yaml.safe_dump(made(tmp_path, "full")), encoding="utf-8")
    code = "from levelhead.cli.main import main; main()"
    command = [sys.executable, "-c", code, "train", str(path), "--out", str(run)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = random.Random(0).randint(2, 7)
    log = run / "metrics.jsonl"
    while process.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < lines):
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    resumed = train(made(tmp_path, "full"), out=run, resume=True)
    assert metrics(run) == metrics(wanted.folder)
    assert same_weights(resumed.model, wanted.model)
