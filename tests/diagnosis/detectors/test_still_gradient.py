"""A gradient that never was anything but 0 is a fault, whatever else the log leaves out."""

from __future__ import annotations

import random

from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import Diagnosis, diagnose


def judged(gradients: list[float]) -> Diagnosis:
    rng = random.Random(2)
    history = History()
    for step, gradient in enumerate(gradients, start=1):
        history.append(step, {"reward": 0.4 + rng.gauss(0, 0.05), "grad_norm": gradient, "entropy": 0.5})
    return diagnose(history)


def test_no_gradient_at_all_is_named_without_a_loss_and_a_spread() -> None:
    diagnosis = judged([0.0] * 20)
    assert diagnosis.faulty
    assert diagnosis.findings[0].code == "reward-dead-groups"


def test_a_gradient_that_is_0_now_and_then_is_no_standstill() -> None:
    assert not judged([0.0, 0.3, 0.0, 0.2] * 5).faulty


def test_three_rows_of_0_may_be_rounding() -> None:
    assert not judged([0.0] * 3).faulty
