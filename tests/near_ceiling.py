"""Made-up runs of a policy that is right most of the time: noisy rewards, and entropy that goes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

Row = dict[str, float]
Level = Callable[[float], float]
GROUPS, SIZE, ROWS = 4, 8, 80


def run(seed: int, accuracy: Level, entropy: Level, rows: int = ROWS) -> list[Row]:
    """Rows as TRL logs them: a few groups of right and wrong answers a step, some prompts easy and some hard."""
    rng = random.Random(seed)
    log = []
    for i in range(rows):
        mean, t = accuracy(i / (rows - 1)), i / (rows - 1)
        groups = []
        for _ in range(GROUPS):
            chance = rng.betavariate(3 * mean, 3 * (1 - mean))
            groups.append([float(rng.random() < chance) for _ in range(SIZE)])
        reward = sum(map(sum, groups)) / (GROUPS * SIZE)
        stds = [math.sqrt(sum(g) / SIZE * (1 - sum(g) / SIZE) * SIZE / (SIZE - 1)) for g in groups]
        log.append(
            {
                "loss": rng.gauss(0, 0.01),
                "grad_norm": rng.lognormvariate(math.log(0.5), 0.4),
                "learning_rate": 1e-5,
                "completions/mean_length": rng.gauss(120, 5),
                "completions/clipped_ratio": 0.0,
                "rewards/accuracy/mean": reward,
                "reward": reward,
                "reward_std": sum(stds) / GROUPS,
                "frac_reward_zero_std": sum(s == 0 for s in stds) / GROUPS,
                "entropy": entropy(t) * rng.lognormvariate(0, 0.1),
            }
        )
    return log


def line(start: float, end: float) -> Level:
    return lambda t: start + (end - start) * t


def soon(start: float, end: float) -> Level:
    """Most of the way within the first third."""
    return lambda t: end + (start - end) * math.exp(-6 * t)


def geometric(start: float, end: float) -> Level:
    return lambda t: start * (end / start) ** t
