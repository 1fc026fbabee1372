from __future__ import annotations

import random
import time

import pytest

import watch_scenarios as scenarios
from levelhead.diagnosis.detectors import View
from levelhead.diagnosis.detectors.base import Candidate
from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import (
    CRITICAL_AT,
    REPORTED_AT,
    UNHEALTHY_AT,
    Diagnosis,
    confidence_of,
    diagnose,
    weigh,
)

Rows = list[tuple[float, dict[str, float]]]


def diagnosed(rows: Rows) -> Diagnosis:
    history = History()
    for step, row in rows:
        history.append(step, row)
    return diagnose(history)


def deadlock_table(*, every_step: bool = True, seconds: bool = True) -> Rows:
    """A run at too high a learning rate: zeros, eight steps of learning, then one answer for everything."""
    rng = random.Random(0)
    alive = {13: (0.75, 1.53, -0.008, 0.53), 17: (0.5, 0.58, -0.121, 6.4), 20: (0.7, 0.56, -0.246, 10.7)}
    rows: Rows = []
    for step in range(1, 101):
        if not every_step and step not in {*range(1, 14), 17, 20, 21, 22, 30, 50, 100}:
            continue
        if step <= 12:
            row = {"reward": 0.0, "reward_std": 0.0, "entropy": rng.uniform(2.3, 2.8), "loss": 0.0, "grad_norm": 0.0}
        elif step <= 20:
            reward, entropy, loss, gradient = alive[max(s for s in alive if s <= step)]
            reward += 0.01 * (step % 3)
            row = {"reward": reward, "reward_std": 0.5, "entropy": entropy, "loss": loss, "grad_norm": gradient}
        else:
            entropy = 0.04 if step < 30 else 0.006
            row = {"reward": 1.0, "reward_std": 0.0, "entropy": entropy, "loss": 0.0, "grad_norm": 0.0}
        if seconds:
            row["step_time"] = 140.0 if step <= 20 else 0.08
        rows.append((step, row))
    return rows


@pytest.mark.parametrize("every_step", [True, False])
@pytest.mark.parametrize("seconds", [True, False])
def test_the_deadlock_is_named_with_the_step_at_which_it_begins(every_step: bool, seconds: bool) -> None:
    diagnosis = diagnosed(deadlock_table(every_step=every_step, seconds=seconds))
    found = diagnosis.findings[0]
    assert (diagnosis.verdict, found.code, found.severity, found.first_step) == ("critical", "deadlock", "critical", 21)
    codes = {f.code: f.first_step for f in diagnosis.findings}
    assert 13 <= codes["entropy-collapse"] <= 21
    if seconds:
        assert codes["step-time-collapse"] == 21


def slow_table(reward: bool) -> Rows:
    """The same task at a fifth of the learning rate: entropy falls late, the loss stays alive."""
    rng = random.Random(1)
    rows: Rows = []
    for step in range(1, 101):
        fall = 2.16 * (0.3 / 2.16) ** ((step - 36) / 64)
        entropy = 2.5 + 0.05 * rng.gauss(0, 1) if step <= 20 else 2.5 - 0.02 * (step - 20) if step <= 36 else fall
        row = {"entropy": rng.uniform(0.13, 0.46) if step > 92 else entropy, "loss": rng.gauss(0, 0.05)}
        if reward:
            level = 0.0 if step < 12 else 0.3 + 0.005 * step
            row |= {
                "reward": min(1.0, max(0.0, rng.gauss(level, 0.1))),
                "reward_std": 0.3,
                "grad_norm": rng.uniform(0.5, 1.5),
            }
        rows.append((step, row))
    return rows


def test_at_a_fifth_of_the_rate_it_is_a_slow_fall_and_no_deadlock() -> None:
    bare = diagnosed(slow_table(reward=False))
    assert bare.verdict == "warning"
    assert bare.findings[0].code == "entropy-collapse"
    assert bare.findings[0].first_step is not None
    assert bare.findings[0].first_step > 36
    three_rows = [
        (20.0, {"entropy": 2.5, "loss": 0.02}),
        (36.0, {"entropy": 2.16, "loss": -0.03}),
        (100.0, {"entropy": 0.3, "loss": 0.04}),
    ]
    assert diagnosed(three_rows).verdict in ("undecided", "warning")
    assert all(f.code != "deadlock" for f in diagnosed(three_rows).findings)


def test_with_a_rising_reward_the_same_fall_is_healthy() -> None:
    assert not diagnosed(slow_table(reward=True)).faulty


def candidate(code: str, weight: float, step: float) -> Candidate:
    return Candidate(code, first_step=step).add(weight, "reward-flat")


def test_the_cause_comes_before_a_surer_effect_that_it_explains() -> None:
    view = View(History())
    runaway, cut = candidate("length-runaway", 4.5, 10), candidate("length-truncation", 5.5, 30)
    ranked = [f.code for f in weigh([cut, runaway], view).findings]
    assert ranked == ["length-runaway", "length-truncation"]


def test_what_comes_later_explains_nothing_earlier() -> None:
    view = View(History())
    runaway, cut = candidate("length-runaway", 4.5, 90), candidate("length-truncation", 5.5, 30)
    findings = weigh([cut, runaway], view).findings
    assert [f.code for f in findings] == ["length-truncation", "length-runaway"]
    assert "length-truncation" not in findings[1].explains


def test_doubts_are_notes_and_leave_the_run_healthy() -> None:
    view = View(History())
    diagnosis = weigh([candidate("kl-blowup", 2.5, 1), candidate("eos-never", 1.0, 1)], view)
    assert not diagnosis.faulty
    assert [(f.code, f.severity) for f in diagnosis.findings] == [("undecided", "info"), ("kl-blowup", "info")]


def test_severity_follows_confidence() -> None:
    view = View(History())
    verdicts = {w: weigh([candidate("kl-blowup", w, 1)], view).verdict for w in (2.5, 2.7, 3.3, 4.0)}
    assert verdicts == {2.5: "undecided", 2.7: "warning", 3.3: "warning", 4.0: "critical"}


def test_confidence_rises_with_evidence_and_stays_a_probability() -> None:
    scores = [confidence_of(x) for x in (-50, REPORTED_AT, UNHEALTHY_AT, CRITICAL_AT, 50)]
    assert scores == sorted(scores)
    assert scores[0] >= 0
    assert scores[-1] <= 1


def test_several_instabilities_at_once_blame_the_learning_rate() -> None:
    rows: Rows = []
    for i in range(40):
        broken = i > 8
        rows.append((i + 1.0, {
            "reward": 0.5 if not broken else max(0.0, 0.5 - 0.05 * (i - 8)),
            "kl": 0.001 if not broken else 0.01 * 1.4 ** (i - 8),
            "entropy": 0.6 if not broken else 0.6 * 1.08 ** (i - 8),
            "grad_norm": 0.5 * (1 + 0.1 * (i % 3)) if not broken else 0.5 * 1.2 ** (i - 8),
            "learning_rate": 2e-4,
        }))  # fmt: skip
    codes = [f.code for f in diagnosed(rows).findings if f.severity != "info"]
    assert "lr-too-high" in codes[:2]


def test_the_same_history_gives_the_same_diagnosis() -> None:
    rows = [(i + 1.0, row) for i, row in enumerate(scenarios.rows(scenarios.UNHEALTHY["cut"][0], 3, 60))]
    assert diagnosed(rows) == diagnosed(rows)


def test_asking_after_every_step_is_cheap() -> None:
    """A guard asks over a bounded history: a few milliseconds a step of processor time."""
    history = History(capacity=256)
    for i, row in enumerate(scenarios.rows(scenarios.HEALTHY["learning"], 0, 400)):
        history.append(i + 1, row)
    start = time.process_time()
    for _ in range(5):
        diagnose(history)
    assert (time.process_time() - start) / 5 < 0.15
