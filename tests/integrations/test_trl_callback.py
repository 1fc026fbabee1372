"""The callback, by the contract of transformers' trainer, and in real runs of TRL where there is one."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import near_ceiling
import watch_scenarios as scenarios
from levelhead.errors import InputError

pytest.importorskip("transformers", reason="the callback is one of transformers' trainer")
pytest.importorskip("accelerate", reason="TrainingArguments need accelerate")

from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

from levelhead.integrations.trl import LevelheadCallback

ROOT = Path(__file__).resolve().parents[2]
Rows = list[dict[str, Any]]


def sound(rows: int = 20) -> Rows:
    return list(scenarios.rows(scenarios.HEALTHY["learning"], 0, rows))


def broken_from(step: int, rows: int = 20) -> Rows:
    return [{**row, "grad_norm": math.nan} if i + 1 >= step else row for i, row in enumerate(sound(rows))]


def train(folder: Path, rows: Rows, callback: LevelheadCallback, before: Rows = (), main: bool = True) -> TrainerState:  # type: ignore[assignment]
    """Log the rows as a trainer does, until it is told to stop."""
    arguments = TrainingArguments(output_dir=str(folder), report_to=[])
    handler = CallbackHandler([DefaultFlowCallback(), callback], None, None, None, None)  # type: ignore[arg-type]
    state = TrainerState(is_world_process_zero=main)
    state.log_history = [{**row, "step": i + 1} for i, row in enumerate(before)]
    control = handler.on_train_begin(arguments, state, TrainerControl())
    for step, row in enumerate(rows, start=len(before) + 1):
        state.global_step = step
        state.log_history.append({**row, "step": step})
        control = handler.on_log(arguments, state, control, logs=dict(row))
        if control.should_training_stop:
            break
    handler.on_train_end(arguments, state, control)
    return state


def test_findings_are_logged_while_it_trains_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    callback = LevelheadCallback()
    with caplog.at_level(logging.WARNING):
        state = train(tmp_path, broken_from(11), callback)
    assert state.global_step == 20
    assert callback.stopped_at is None
    assert caplog.messages[0].startswith("step 11: ")
    assert "nonfinite" in caplog.messages[0]


def test_with_stop_it_ends_training_when_a_critical_finding_has_stood(tmp_path: Path) -> None:
    callback = LevelheadCallback(stop=True, patience=2)
    assert train(tmp_path, broken_from(11), callback).global_step == callback.stopped_at
    assert callback.stopped_at is not None
    assert 12 <= callback.stopped_at <= 14


def test_a_sound_run_is_neither_stopped_nor_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = LevelheadCallback(stop=True, patience=1)
    with caplog.at_level(logging.WARNING):
        assert train(tmp_path, sound(60), callback).global_step == 60
    assert caplog.messages == []


def test_a_sound_run_near_its_ceiling_ends_by_itself(tmp_path: Path) -> None:
    for seed in range(3):
        rows = near_ceiling.run(seed, near_ceiling.soon(0.78, 0.86), near_ceiling.geometric(0.3, 0.01), 40)
        callback = LevelheadCallback(stop=True, report=False)
        assert train(tmp_path, rows, callback).global_step == 40
        assert callback.stopped_at is None


@pytest.mark.parametrize(("before", "after"), [(0.5, 0.65), (0.6, 0.6)])
def test_entropy_alone_ends_no_run_whose_reward_rises_or_stands(before: float, after: float, tmp_path: Path) -> None:
    for seed in range(5):
        rows = near_ceiling.run(seed, near_ceiling.soon(before, after), near_ceiling.geometric(0.6, 0.03), 40)
        callback = LevelheadCallback(stop=True, report=False)
        assert train(tmp_path, rows, callback).global_step == 40, callback.live.diagnosis


def test_a_collapse_that_costs_the_reward_ends_the_run(tmp_path: Path) -> None:
    level = near_ceiling.soon(0.6, 0.6)
    rows = near_ceiling.run(0, lambda t: level(t) if t < 0.5 else 0.15, near_ceiling.geometric(0.6, 0.01), 60)
    callback = LevelheadCallback(stop=True, report=False)
    assert train(tmp_path, rows, callback).global_step < 60


def growing_harder(rows: int = 60) -> Rows:
    """Rewards that fall and entropies and lengths that rise, as where each prompt is harder than the last."""
    rng = random.Random(0)
    return [
        {
            "reward": 0.9 - 0.6 * i / rows + rng.gauss(0, 0.02),
            "reward_std": 0.3,
            "frac_reward_zero_std": 0.2,
            "entropy": 0.15 + 0.9 * i / rows,
            "grad_norm": rng.lognormvariate(0, 0.2),
            "completions/mean_length": 2.0 + 6.0 * i / rows,
            "completions/clipped_ratio": 0.0,
        }
        for i in range(rows)
    ]


def in_order(callback: LevelheadCallback, rows: Rows, folder: Path) -> int | None:
    """Play rows whose prompts came in the order of the data set."""
    arguments = TrainingArguments(output_dir=str(folder), report_to=[])
    arguments.shuffle_dataset = False  # type: ignore[attr-defined]  # of GRPOConfig
    state, control = TrainerState(is_world_process_zero=True), TrainerControl()
    callback.on_train_begin(arguments, state, control)
    for step, row in enumerate(rows, start=1):
        state.global_step = step
        callback.on_log(arguments, state, control, logs=dict(row))
        if control.should_training_stop:
            break
    return callback.stopped_at


def test_prompts_that_grow_harder_in_their_order_end_no_run(tmp_path: Path) -> None:
    assert in_order(LevelheadCallback(stop=True, report=False), growing_harder(), tmp_path) is None
    shuffled = LevelheadCallback(stop=True, report=False)
    train(tmp_path, growing_harder(), shuffled)
    assert shuffled.stopped_at is not None


def test_in_order_or_not_what_no_prompt_brings_about_ends_the_run(tmp_path: Path) -> None:
    broken = [{**row, "grad_norm": math.nan} if i >= 10 else row for i, row in enumerate(growing_harder())]
    assert in_order(LevelheadCallback(stop=True, report=False), broken, tmp_path) in (12, 13, 14)


def test_held_out_scores_that_fall_end_a_run_in_order(tmp_path: Path) -> None:
    rows = [{**row, "eval_reward": 0.9 - 0.7 * i / 60} for i, row in enumerate(growing_harder())]
    assert in_order(LevelheadCallback(stop=True, report=False), rows, tmp_path) is not None


def test_the_report_is_the_doctors_on_the_same_rows(tmp_path: Path) -> None:
    train(tmp_path, broken_from(11), LevelheadCallback(language="zh"))
    document = json.loads((tmp_path / "levelhead-doctor.json").read_text(encoding="utf-8"))
    assert (document["format"], document["rows"], document["verdict"]) == ("trl", 20, "critical")
    assert document["findings"][0]["code"] == "nonfinite"
    assert document["stopped_at"] is None
    assert "<html" in (tmp_path / "levelhead-doctor.html").read_text(encoding="utf-8")


def test_without_a_report_nothing_is_written_and_a_folder_may_be_chosen(tmp_path: Path) -> None:
    train(tmp_path / "a", sound(), LevelheadCallback(report=False))
    assert not list((tmp_path / "a").glob("levelhead*"))
    train(tmp_path / "b", sound(), LevelheadCallback(report=tmp_path / "c"))
    assert (tmp_path / "c" / "levelhead-doctor.json").is_file()


def test_a_report_that_cannot_be_written_does_not_cost_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    train(tmp_path, sound(), LevelheadCallback(report=tmp_path / "file"))
    assert "cannot be written" in caplog.text


def test_other_processes_say_nothing_and_stop_at_the_same_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, other = LevelheadCallback(stop=True), LevelheadCallback(stop=True)
    train(tmp_path / "first", broken_from(11), first)
    caplog.clear()
    train(tmp_path / "other", broken_from(11), other, main=False)
    assert caplog.messages == []
    assert not (tmp_path / "other" / "levelhead-doctor.json").exists()
    assert other.stopped_at == first.stopped_at


def test_a_resumed_run_remembers_what_it_logged(tmp_path: Path) -> None:
    rows = broken_from(11)
    callback = LevelheadCallback()
    train(tmp_path, rows[12:], callback, before=rows[:12])
    assert callback.live.history.rows == 20
    assert callback.live.diagnosis is not None
    assert callback.live.diagnosis.findings[0].first_step == 11


def test_a_resumed_run_is_not_stopped_by_what_was_before(tmp_path: Path) -> None:
    rows = broken_from(11)
    callback = LevelheadCallback(stop=True)
    state = train(tmp_path, rows[16:], callback, before=rows[:16])
    assert state.global_step == 16 + 3


def test_the_random_state_is_left_alone(tmp_path: Path) -> None:
    random.seed(0)
    before = random.getstate()
    train(tmp_path, broken_from(11), LevelheadCallback(stop=True))
    assert random.getstate() == before


def test_patience_below_one_is_refused() -> None:
    with pytest.raises(InputError, match="patience"):
        LevelheadCallback(patience=0)


@pytest.fixture
def trl_python() -> str:
    """A Python with TRL: the one named by LEVELHEAD_TRL_PYTHON, or this one."""
    named = os.environ.get("LEVELHEAD_TRL_PYTHON")
    if named:
        return named
    if importlib.util.find_spec("trl") is None:
        pytest.skip("TRL is not installed; LEVELHEAD_TRL_PYTHON names a Python that has it")
    return sys.executable


def run_bench(trl_python: str, script: str, *arguments: str) -> None:
    """Run a bench in TRL's own environment, to its end."""
    done = subprocess.run(
        [trl_python, f"bench/{script}", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_in_trl_faults_are_caught_and_training_ended_and_a_sound_run_left_alone(
    trl_python: str, tmp_path: Path
) -> None:
    out = tmp_path / "results.jsonl"
    names = ["never right", "gradients lost", "sound"]
    run_bench(trl_python, "trl_faults.py", "--steps", "30", "--stop", "--out", str(out), *names)
    hopeless, lost, sound_run = (json.loads(line) for line in out.read_text(encoding="utf-8").splitlines())
    for run in (hopeless, lost):
        assert run["verdict"] == "critical"
        assert run["right_first"], run["found"]
        assert run["stopped_at"] == len(run["log"]) < 30
    assert (sound_run["verdict"], sound_run["stopped_at"], len(sound_run["log"])) == ("healthy", None, 30)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_in_trl_sound_runs_near_their_ceiling_of_penalties_and_in_order_end_by_themselves(
    trl_python: str, tmp_path: Path
) -> None:
    out = tmp_path / "results.json"
    names = [
        "words turned, near their ceiling, KL penalty",
        "penalties in thousands, not scaled",
        "words that grow longer, in order",
    ]
    run_bench(trl_python, "trl_sound.py", "--out", str(out), *names)
    results = json.loads(out.read_text(encoding="utf-8"))
    assert {run["run"] for run in results} == set(names)
    for run in results:
        assert run["stopped_at"] is None, (run["run"], run["findings"])
        assert run["sound"], (run["run"], run["drawn"])
