"""A mean reward that is the same to the last digit row after row says that every reward is: no group has contrast."""

from __future__ import annotations

from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import Diagnosis, diagnose


def judged(rows: int, **columns: float) -> Diagnosis:
    history = History()
    for step in range(1, rows + 1):
        history.append(step, {"kl": 0.01 + 0.001 * (step % 3), **columns})
    return diagnose(history)


def test_one_reward_for_everything_is_named_without_a_column_of_spreads() -> None:
    codes = [f.code for f in judged(40, reward=0.5).findings if f.severity != "info"]
    assert codes[0] == "reward-dead-groups"


def test_a_few_rows_of_one_rounded_reward_say_nothing() -> None:
    assert not judged(9, reward=0.4).faulty


def test_measured_contrast_is_believed_before_a_constant_mean() -> None:
    diagnosis = judged(40, reward=0.5, frac_reward_zero_std=0.1)
    assert "reward-dead-groups" not in {f.code for f in diagnosis.findings if f.severity != "info"}
