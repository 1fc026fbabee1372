"""The doctor on numbers, files and texts that are meant to break it."""

from __future__ import annotations

import json
import math
import os
import resource
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from levelhead.cli.main import app
from levelhead.contrib.workflow.census import written
from levelhead.contrib.workflow.log import batches_of_rollouts
from levelhead.doctor.live import follow
from levelhead.doctor.page import page
from levelhead.doctor.render import text
from levelhead.doctor.report import examine, examine_rows
from levelhead.doctor.table import Table
from levelhead.errors import InputError

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


@pytest.mark.parametrize("value", [1e308, -1e308, 1e300, -3e-5, 1e-320])
@pytest.mark.parametrize(
    "name", ["reward", "loss", "grad_norm", "learning_rate", "completions/mean_length", "kl", "entropy"]
)
def test_no_reading_overflows_the_doctor(name: str, value: float) -> None:
    rows = [{"reward": 0.1 * i, "grad_norm": 1.0, name: value * (1 + i % 3)} for i in range(40)]
    report = examine_rows(rows)
    assert text(report)
    json.dumps(report.to_json(), allow_nan=False)


def test_a_reading_beyond_single_precision_is_not_finite() -> None:
    report = examine_rows([{"reward": 0.5, "loss": 0.1}] * 5 + [{"reward": 0.5, "loss": -1e308}] * 5)
    assert "nonfinite" in [finding.code for finding in report.diagnosis.findings]
    assert all(map(math.isfinite, report.history.series("loss").values))


def test_a_step_beyond_reason_is_no_step(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("".join(f"Step {'9' * 400}{i} | Loss: 0.{i} | Reward: 0.{i} | 1s\n" for i in range(1, 9)))
    assert examine(path).history.last_step < 1e15


def test_events_and_headings_hold_no_escape(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    rows = [{"step": i, "stage": "grpo", "reward": 0.1, f"rewards/{ESCAPES}/mean": 0.1, "loss": 0.1} for i in range(20)]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    event = {"step": ESCAPES, "code": f"x{ESCAPES}", "severity": "critical", "message": ESCAPES, "action": ESCAPES}
    (run / "events.jsonl").write_text(json.dumps(event))
    for flags in ([], ["--json"], ["--lang", "zh"]):
        said = CliRunner().invoke(app, ["doctor", str(run), *flags])
        assert said.exit_code == 0, said.output
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(said.output)


@pytest.mark.parametrize("step", ['"../.."', "{}", "[1]", "null", "1e999", "NaN", "true", "-1e300", "9" * 400])
def test_an_event_whose_step_is_no_number_is_read(tmp_path: Path, step: str) -> None:
    (tmp_path / "metrics.jsonl").write_text("\n".join(f'{{"step": {i}, "reward": 0.1}}' for i in range(20)))
    event = f'{{"step": {step}, "code": "rewards", "severity": "critical", "action": "stop", "message": "m"}}'
    (tmp_path / "events.jsonl").write_text(event)
    said = CliRunner().invoke(app, ["doctor", str(tmp_path)])
    assert said.exit_code == 0, said.output
    assert "rewards-stopped" in said.output


def test_half_a_character_of_a_rollout_stands_on_the_page_as_a_question_mark() -> None:
    report = examine_rows([{"reward": 0.1}] * 8)
    shown = page(replace(report, tables=[Table("workflows", ("workflow",), (("half \ud800 of it",),))]))
    assert "half ? of it" in shown
    shown.encode()


def test_only_files_that_end_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InputError, match="no regular file"):
            examine(path)
        with pytest.raises(InputError, match="no regular file"):
            next(follow(path))


def test_one_huge_line_takes_little_memory_and_time(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    with path.open("wb") as file:
        for _ in range(12):
            file.write(b"loss=" + b"1" * (1 << 20))
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()
    with pytest.raises(InputError, match="no training metrics"):
        examine(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
    assert time.thread_time() - began < 20


def test_malformed_rollouts_are_passed_over() -> None:
    assert batches_of_rollouts([{"step": 10**400, "valid": True}, {"step": [], "valid": 1}, {}]) == []
    info = {"domain": "math", "difficulty": "easy", "tokens": 10**400, "calls": True}
    row = written({"info": info, "parts": [], "reward": 0.5})
    assert row is not None
    assert (row.tokens, row.calls) == (None, None)
    assert written({"info": info, "reward": 10**400}) is None


@pytest.mark.parametrize(
    ("log", "signal", "value"),
    [
        ("'loss': -0.0, 'reward': 0.34, 'reward_std': 0.44, 'kl': 0.0, 'step': 5}\n", "reward", 0.34),
        ("grpo_loss/kl_divergence_mean: 1,568,987.96\ngrpo_loss/total_loss: 1.77\n", "kl", 1568987.96),
        ("Step 0 | Mismatch KL: 1.2689\n", "mismatch/kl", 1.2689),
        ("step,n,r_outcome,r_total\n50,3,0.39,0.30\n100,3,0.40,0.32\n", "rewards/outcome/mean", 0.39),
    ],
)
def test_short_logs_that_people_paste(tmp_path: Path, log: str, signal: str, value: float) -> None:
    (tmp_path / "log.txt").write_text(log)
    assert examine(tmp_path / "log.txt").history.series(signal).values[0] == pytest.approx(value)
