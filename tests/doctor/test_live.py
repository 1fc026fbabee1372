"""The doctor beside a running training."""

from __future__ import annotations

import math
from typing import Any

import watch_scenarios as scenarios
from levelhead.doctor.live import PERSISTENCE, Live


def played(live: Live, rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Show the rows; return the steps at which each finding was told."""
    told: dict[str, list[int]] = {}
    for step, row in enumerate(rows, start=1):
        for finding in live.see(row, float(step)):
            told.setdefault(finding.code, []).append(step)
    return told


def sound(rows: int = 20) -> list[dict[str, Any]]:
    return list(scenarios.rows(scenarios.HEALTHY["learning"], 0, rows))


def broken_from(step: int, rows: int = 20) -> list[dict[str, Any]]:
    return [{**row, "grad_norm": math.nan} if i + 1 >= step else row for i, row in enumerate(sound(rows))]


def test_a_sound_run_is_told_nothing() -> None:
    live = Live("trl")
    assert played(live, sound(60)) == {}
    assert live.standing == 0


def stuck(rows: int = 20) -> list[dict[str, Any]]:
    zeros = {"reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0, "loss": 0.0, "grad_norm": 0.0}
    return [dict(zeros) for _ in range(rows)]


def test_a_finding_is_told_once_it_has_stood_and_then_no_more() -> None:
    live = Live("trl")
    told = played(live, stuck())
    # Once as a warning and once as critical, at most.
    assert all(steps[0] >= PERSISTENCE and len(steps) <= 2 for steps in told.values())
    assert told["no-learning-signal-all-zero-reward"][0] == PERSISTENCE
    assert live.standing >= PERSISTENCE


def test_what_is_not_finite_is_told_at_once() -> None:
    live = Live("trl")
    told = played(live, broken_from(11))
    assert list(told) == ["nonfinite"]
    assert told["nonfinite"][0] == 11
    assert live.diagnosis is not None
    assert live.diagnosis.verdict == "critical"


def test_a_line_for_the_log_says_what_since_when_and_what_to_change() -> None:
    live = Live("trl")
    played(live, broken_from(11))
    assert live.diagnosis is not None
    line = live.describe(live.diagnosis.findings[0])
    assert "\n" not in line
    assert "nonfinite" in line
    assert "11" in line
    chinese = live.describe(live.diagnosis.findings[0], "zh")
    assert any("\u4e00" <= c <= "\u9fff" for c in chinese)


def test_rows_without_metrics_change_nothing() -> None:
    live = Live("trl")
    assert live.see({}, 1.0) == []
    assert live.see({"train_runtime": 3.0, "note": "done"}, 2.0) == []
    assert live.see({"reward": 0.5}, math.nan) == []
    assert live.report("run") is None


def test_what_is_left_out_is_not_seen() -> None:
    live = Live("trl", leave_out=("step_time",))
    live.see({"reward": 0.5, "step_time": 3.0}, 1.0)
    assert "step_time" not in live.history
    assert "reward" in live.history


def test_a_long_run_is_kept_in_bounded_memory() -> None:
    live = Live("trl", capacity=32)
    played(live, sound(300))
    assert max(len(series.values) for series in live.history.columns.values()) <= 32
    assert live.history.rows == 300
