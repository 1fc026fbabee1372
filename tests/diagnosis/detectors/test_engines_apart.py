"""Engines that were measured to be apart are apart, however well the run goes: then it is no more than a warning."""

from __future__ import annotations

import random

import pytest

from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import Diagnosis, diagnose


def judged(nats: float) -> Diagnosis:
    rng = random.Random(5)
    history = History()
    for step in range(1, 41):
        history.append(
            step,
            {
                "reward": 0.2 + 0.015 * step + rng.gauss(0, 0.02),
                "eval/score": 0.2 + 0.012 * step,
                "sampling/sampling_logp_difference/mean": nats * rng.uniform(0.9, 1.1),
            },
        )
    return diagnose(history)


@pytest.mark.parametrize("nats", [0.6, 1.2])
def test_a_rising_reward_does_not_talk_away_engines_that_are_far_apart(nats: float) -> None:
    diagnosis = judged(nats)
    assert diagnosis.verdict == "warning"
    assert diagnosis.findings[0].code == "logprob-mismatch"


@pytest.mark.parametrize("nats", [0.02, 0.15])
def test_a_rising_reward_settles_a_doubtful_difference(nats: float) -> None:
    assert not judged(nats).faulty
