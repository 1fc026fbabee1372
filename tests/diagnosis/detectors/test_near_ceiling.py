"""Runs that learn near their ceiling: what is certain needs no entropy, and is no reason to end a run."""

from __future__ import annotations

import pytest

import watch_scenarios as scenarios
from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import diagnose
from levelhead.doctor.live import Live
from near_ceiling import ROWS, Level, geometric, line, run, soon
from night import cases


@pytest.mark.night
@pytest.mark.parametrize(
    ("accuracy", "entropy"),
    [
        (line(0.78, 0.86), geometric(0.3, 0.01)),
        (soon(0.78, 0.86), soon(1.2, 0.05)),
        (line(0.6, 0.86), geometric(1.2, 0.05)),
        (soon(0.7, 0.8), soon(0.3, 0.01)),
        (line(0.85, 0.85), soon(0.3, 0.01)),
    ],
)
def test_a_run_near_its_ceiling_is_not_ended_for_its_entropy(accuracy: Level, entropy: Level) -> None:
    for seed in range(cases(3, 10)):
        live = Live("trl")
        warned = 0
        for step, row in enumerate(run(seed, accuracy, entropy), start=1):
            live.see(row, step)
            assert live.diagnosis is not None
            assert live.diagnosis.verdict != "critical", (seed, step, live.diagnosis.findings[0])
            warned += live.diagnosis.faulty
        assert warned <= 0.1 * ROWS, seed


@pytest.mark.parametrize("level", [0.1, 0.3, 0.5])
def test_entropy_that_is_gone_while_the_reward_stands_low_is_critical_still(level: float) -> None:
    for seed in range(5):
        history = History()
        for step, row in enumerate(run(seed, line(level, level), soon(0.5, 0.01)), start=1):
            history.append(step, row)
        first = diagnose(history).findings[0]
        assert (first.code, first.severity) == ("entropy-collapse", "critical"), (seed, first)


def test_entropy_that_is_gone_while_a_high_reward_is_lost_is_critical_still() -> None:
    for seed in range(5):
        history = History()
        for step, row in enumerate(run(seed, line(0.85, 0.45), soon(0.5, 0.01)), start=1):
            history.append(step, row)
        assert diagnose(history).verdict == "critical", seed


def test_no_finding_says_both_that_the_reward_rises_and_that_it_does_not() -> None:
    everything = [*scenarios.HEALTHY.values(), *(scenario for scenario, _ in scenarios.UNHEALTHY.values())]
    for scenario in everything:
        for n in (12, 40):
            history = History()
            for step, row in enumerate(scenarios.rows(scenario, n, n), start=1):
                history.append(step, row)
                if step < 6:
                    continue
                for finding in diagnose(history).findings:
                    keys = {argument.key for argument in finding.evidence}
                    assert not {"reward-flat", "reward-rises"} <= keys, (scenario, step, finding)
