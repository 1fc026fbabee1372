"""Claims over many made-up runs: what is called unhealthy, what is not, and since when."""

from __future__ import annotations

import random
from collections import Counter

import pytest

import watch_scenarios as scenarios
from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import Diagnosis, diagnose

SEEDS = range(3)
LONG_AND_FLAT = {"flat", "spike-in-a-flat-run", "few-signals"}
"""At a hundred and more rows these have shown that they do not improve, and it is right to say so."""


def diagnosed(rows: list[scenarios.Row]) -> Diagnosis:
    history = History()
    for i, row in enumerate(rows):
        history.append(i + 1, row)
    return diagnose(history)


@pytest.mark.parametrize("name", sorted(scenarios.HEALTHY))
def test_a_healthy_run_is_not_called_unhealthy_for_an_alarming_level(name: str) -> None:
    for n in (12, 40, 90):
        for seed in SEEDS:
            diagnosis = diagnosed(scenarios.rows(scenarios.HEALTHY[name], 1000 * seed + n, n))
            assert not diagnosis.faulty, (n, seed, diagnosis.findings[0].code)
            assert diagnosis.findings[0].code == diagnosis.verdict


@pytest.mark.parametrize("name", sorted(set(scenarios.HEALTHY) - LONG_AND_FLAT - {"noisy-reward"}))
def test_a_long_healthy_run_is_not_called_unhealthy_either(name: str) -> None:
    for seed in SEEDS:
        assert not diagnosed(scenarios.rows(scenarios.HEALTHY[name], seed, 400)).faulty


@pytest.mark.parametrize("name", sorted(LONG_AND_FLAT))
def test_hundreds_of_flat_rows_are_a_warning_and_no_more(name: str) -> None:
    diagnosis = diagnosed(scenarios.rows(scenarios.HEALTHY[name], 0, 400))
    assert diagnosis.verdict == "warning"
    assert diagnosis.findings[0].code == "no-improvement"


@pytest.mark.parametrize("name", sorted(scenarios.UNHEALTHY))
def test_the_cause_of_a_failed_run_comes_first(name: str) -> None:
    scenario, causes = scenarios.UNHEALTHY[name]
    found = Counter(
        diagnosed(scenarios.rows(scenario, 1000 * seed + n, n)).findings[0].code
        for n in (30, 80, 250)
        for seed in SEEDS
    )
    right = sum(found[cause] for cause in causes)
    assert right >= 0.85 * sum(found.values()), found


@pytest.mark.parametrize(
    ("name", "onset"),
    [
        ("spike-kills", 0.6),
        ("nan-for-good", 0.5),
        ("judge-out", 0.4),
        ("breaks", 0.5),
        ("invalid", 0.5),
        ("deadlock", 0.4),
    ],
)
def test_the_first_bad_step_is_named(name: str, onset: float) -> None:
    n = 100
    for seed in SEEDS:
        finding = diagnosed(scenarios.rows(scenarios.UNHEALTHY[name][0], seed, n)).findings[0]
        assert finding.first_step is not None
        assert abs(finding.first_step - onset * n) <= 3, finding


def test_fewer_signals_do_not_make_healthy_runs_unhealthy() -> None:
    rng = random.Random(5)
    for name, scenario in scenarios.HEALTHY.items():
        rows = scenarios.rows(scenario, 7, 60)
        keep = {"reward"} | {key for key in rows[0] if rng.random() < 0.5}
        diagnosis = diagnosed([{k: v for k, v in row.items() if k in keep} for row in rows])
        assert not diagnosis.faulty, (name, diagnosis.findings[0])


def test_any_part_of_a_healthy_run_is_healthy() -> None:
    alarms, total = Counter[tuple[str, str]](), 0
    for name, scenario in scenarios.HEALTHY.items():
        rows = scenarios.rows(scenario, 11, 90)
        for start, stop in ((0, 8), (0, 30), (30, 60), (60, 90), (45, 90)):
            diagnosis = diagnosed(rows[start:stop])
            total += 1
            if diagnosis.faulty:
                alarms[name, diagnosis.findings[0].code] += 1
    # A stretch of zeros at the start, and answers that are all cut, look the same alone as in an unhealthy run.
    excused = sum(count for (name, _), count in alarms.items() if name in ("hard-start", "cut-but-learning"))
    assert sum(alarms.values()) - excused <= 0.04 * total, alarms


def test_the_diagnosis_does_not_depend_on_the_order_of_columns() -> None:
    rows = scenarios.rows(scenarios.UNHEALTHY["entropy-explodes"][0], 2, 80)
    turned = [dict(reversed(row.items())) for row in rows]
    assert diagnosed(rows).findings[0].code == diagnosed(turned).findings[0].code
    assert diagnosed(rows).findings[0].confidence == pytest.approx(diagnosed(turned).findings[0].confidence)


def test_merging_a_long_history_keeps_the_diagnosis() -> None:
    rows = scenarios.rows(scenarios.UNHEALTHY["entropy-gone"][0], 4, 600)
    small = History(capacity=64)
    for i, row in enumerate(rows):
        small.append(i + 1, row)
    assert diagnose(small).findings[0].code == diagnosed(rows).findings[0].code == "entropy-collapse"
