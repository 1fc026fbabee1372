"""The doctor beside a running training."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
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


def distant(reward: Callable[[float], float], rows: int = 50) -> list[dict[str, Any]]:
    """A policy that moves nats away from its reference, writes shorter and shorter, and is rewarded as given."""
    rng = random.Random(3)
    return [
        {
            "reward": reward(t) + rng.gauss(0, 0.03),
            "reward_std": 0.3,
            "frac_reward_zero_std": 0.1,
            "kl": 0.02 * 1000**t * rng.lognormvariate(0, 0.2),
            "entropy": 0.6,
            "grad_norm": rng.lognormvariate(0, 0.2),
            "completions/mean_length": 9 - 7 * t,
            "completions/clipped_ratio": 0.0,
        }
        for t in (i / (rows - 1) for i in range(rows))
    ]


def longest_stand(rows: list[dict[str, Any]]) -> int:
    live, longest = Live("trl"), 0
    for step, row in enumerate(rows, start=1):
        live.see(row, float(step))
        longest = max(longest, live.standing)
    return longest


def test_a_policy_far_from_its_reference_whose_reward_rises_has_nothing_standing_against_it() -> None:
    rising = distant(lambda t: 0.1 + 0.5 * t)
    told = played(Live("trl"), rising)
    assert "kl-blowup" in told
    assert longest_stand(rising) == 0


def test_the_first_rows_of_a_reward_that_does_not_rise_yet_are_waited_for() -> None:
    early = distant(lambda _: 0.3, rows=16)
    assert "kl-blowup" in played(Live("trl"), early)
    assert longest_stand(early) == 0
    assert longest_stand(distant(lambda t: 0.6 - 0.5 * t, rows=16)) >= PERSISTENCE


def stranded(rows: int = 20) -> list[dict[str, Any]]:
    """A policy that leapt nats away in three updates to one empty answer, which earns a little more than it had."""
    rng = random.Random(5)
    begun = [(-0.17, 2.5, 7.0, 0.0), (0.01, 2.0, 2.2, 0.6), (-0.26, 0.7, 8.3, 1.6)]
    over = [(0.0, 0.02, 1.0, 1.9 * rng.lognormvariate(0, 0.15)) for _ in range(rows)]
    return [
        {
            "reward": reward,
            "reward_std": 0.3 if step < 3 else 0.0,
            "frac_reward_zero_std": float(step >= 3),
            "kl": kl,
            "entropy": entropy,
            "grad_norm": 1.0 if step < 3 else 0.02,
            "learning_rate": 0.1,
            "completions/mean_length": length,
        }
        for step, (reward, entropy, length, kl) in enumerate(begun + over)
    ]


def test_the_same_stands_where_the_reward_stays_falls_or_has_no_contrast_left() -> None:
    assert longest_stand(distant(lambda _: 0.3)) >= PERSISTENCE
    assert longest_stand(distant(lambda t: 0.5 - 0.4 * t)) >= PERSISTENCE
    assert longest_stand(stranded()) >= PERSISTENCE
