"""A run whose judge fails says so in every place where somebody looks, and goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from judged_run import run_with
from levelhead.watch.doctor import examine
from small_run import events, steps


def test_a_judge_without_grades_is_in_metrics_events_and_diagnosis(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", "I would rather not say.", prompt_price=1.0)
    rows = steps(run, "grpo")
    assert all(row["judge/failures"] == row["judge/verdicts"] > 0 for row in rows)
    assert all(row["judge/failure_rate"] == 1 for row in rows)
    named = {"judge/calls", "judge/cached", "judge/retries", "judge/prompt_tokens", "judge/cost", "judge/latency_p95"}
    assert named <= set(rows[0])
    told = {(event["step"], event["code"], event["severity"]) for event in events(run)}
    assert {(step, "judge-failure", "critical") for step in (1, 2, 3)} <= told
    report = examine(run)
    assert (report.diagnosis.verdict, report.diagnosis.findings[0].code) == ("critical", "judge-failure")


@pytest.mark.parametrize("dynamic_sampling", [0, 1])
def test_a_run_goes_on_where_every_rollout_is_dropped(tmp_path: Path, dynamic_sampling: int) -> None:
    run = run_with(tmp_path / "run", "no", f"grpo.dynamic_sampling={dynamic_sampling}", on_failure="drop")
    assert [row["num_rollouts"] for row in steps(run, "grpo")] == [0, 0, 0]
    assert all(row["dropped_rollouts"] >= 8 for row in steps(run, "grpo"))


def test_what_a_seed_fixes_is_told_from_what_it_does_not(tmp_path: Path) -> None:
    """With a cache, a second run pays for nothing: all else is the same."""
    cache = str(tmp_path / "judge.sqlite")
    one, two = (steps(run_with(tmp_path / name, "Grade: 5", cache=cache), "grpo") for name in ("one", "two"))
    paid = ("judge/calls", "judge/cached", "judge/prompt_tokens", "judge/completion_tokens")
    assert [row["judge/calls"] for row in two] == [0, 0, 0]
    assert [row["judge/calls"] + row["judge/cached"] for row in one] == [row["judge/cached"] for row in two]

    def fixed(rows: list[dict[str, Any]]) -> list[str]:
        return [
            json.dumps({k: v for k, v in row.items() if k not in paid and "latency" not in k}, sort_keys=True)
            for row in rows
        ]

    assert fixed(one) == fixed(two)
