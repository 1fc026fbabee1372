from __future__ import annotations

import random

from levelhead.diagnosis.history import History
from levelhead.diagnosis.reward_trend import RewardTrend


def run(rewards: list[float], **columns: list[float]) -> RewardTrend:
    history = History()
    for i, reward in enumerate(rewards):
        history.append(i + 1, {"reward": reward, **{name: values[i] for name, values in columns.items()}})
    return RewardTrend(history)


def noisy(levels: list[float], sigma: float = 0.05, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(level, sigma) for level in levels]


def test_a_climb_is_learning() -> None:
    reward_trend = run(noisy([0.2 + 0.005 * i for i in range(100)]))
    assert reward_trend.learned > 0.9
    assert reward_trend.lost < 0.1
    assert reward_trend.shape == "rising"


def test_noise_is_not_learning() -> None:
    learned = [run(noisy([0.4] * 60, seed=seed)).learned for seed in range(20)]
    assert sum(value > 0.3 for value in learned) <= 1


def test_a_climb_that_is_lost_again_is_not_learning() -> None:
    reward_trend = run(noisy([0.2 + 0.01 * min(i, 60) for i in range(70)] + [0.05] * 30))
    assert reward_trend.learned < 0.3
    assert reward_trend.lost > 0.7
    assert 65 <= reward_trend.reward.drop_step <= 80


def test_a_leap_to_a_frozen_reward_is_not_learning() -> None:
    reward_trend = run([0.0] * 12 + [0.75, 0.6, 0.5, 0.7] + [1.0] * 50)
    assert reward_trend.leapt
    assert reward_trend.learned < 0.3
    assert reward_trend.near_top == 0


def test_a_held_out_score_overrules_the_training_reward() -> None:
    history = History()
    for i, reward in enumerate(noisy([0.4] * 60)):
        history.append(i + 1, {"reward": reward})
        if i % 10 == 0:
            history.append(i + 1, {"eval/accuracy": 0.3 + 0.006 * i})
    assert RewardTrend(history).learned > 0.5


def test_the_part_that_judges_correctness_stands_in_for_a_missing_reward() -> None:
    history = History()
    for i in range(30):
        history.append(i + 1, {"rewards/format/mean": 0.9, "rewards/accuracy/mean": 0.2 + 0.01 * i})
    reward_trend = RewardTrend(history)
    assert reward_trend.source == "rewards/accuracy/mean"
    assert reward_trend.learned > 0.5


def test_the_top_is_the_number_of_parts_when_each_lies_between_0_and_1() -> None:
    parts = {f"rewards/{name}/mean": [0.9] * 10 for name in ("accuracy", "format", "tag")}
    assert run([2.7] * 10, **parts).top == 3.0
    assert run([2.7] * 10).top is None


def test_one_row_has_no_reward_trend() -> None:
    reward_trend = run([0.3])
    assert not reward_trend.has_signal
    assert reward_trend.learned == reward_trend.lost == 0.0
