"""Whether a task gets one and the same answer whatever is asked: what guard and doctor both go by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from levelhead import metrics as metric
from levelhead.diagnosis import stats

PREFIX = metric.TOP_SHARE.prefix
"""Metrics of this prefix name the tasks whose answers are measured."""
GAUGES = {
    "top_share": metric.TOP_SHARE,
    "entropy": metric.ANSWER_ENTROPY,
    "information": metric.INFORMATION,
    "perfect_share": metric.PERFECT_SHARE,
    "validity": metric.VALIDITY_BY_TASK,
    "reward": metric.REWARD_BY_TASK,
}
"""What is read of a task: of its answers (:mod:`levelhead.diagnosis.answers`), and beside them."""

FEW_STEPS, MANY_STEPS = 1, 4
"""Steps that can say something, up to which nothing is said and from which everything is."""
TOLD = 0.15
"""Nats from which answers are said to tell something of their prompts."""

# Set by hand on the development logs (docs/doctor.md), unless a line says otherwise.
# Weights are log-odds; a range begins where nothing counts and ends where all does.
_SHARE_RANGE = (0.85, 0.97)  # share of prompts with the same answer
_ENTROPY_RANGE = (0.5, 0.25)  # nats of the answers of a batch
_INFORMATION_RANGE = (0.15, 0.05)  # nats that they tell of the prompts
_VALID_RANGE = (0.05, 0.3)  # share of answers that parse
_PERFECT_RANGE = (0.05, 0.15)  # share beyond that of perfect answers
_TOLD_STEPS = 4  # steps before answers have told something
_TOLD_ERRORS = 4  # standard errors that it must lie above 0
_ONE = 1.0001  # largest reward in [0, 1], rounding included
_NEAR_TOP = (0.8, 0.95)  # mean reward that says that the one answer is right


@dataclass(frozen=True, slots=True)
class Sameness:
    """A task's answers over some steps.

    Attributes:
        task: Its name.
        share: Mean share of the prompts that get the batch's most common answer.
        entropy: Mean entropy of the answers of a batch, nats.
        information: Mean of what they tell of the prompts, nats; 0 where it could not be told.
        perfect: Mean share that perfect answers to the same prompts would have; ``None`` where nobody knows them.
        strength: 0 to 1: how surely one answer is given to all prompts that do not all have the same right one.
    """

    task: str
    share: float
    entropy: float
    information: float
    perfect: float | None
    strength: float


def names(task: str) -> dict[str, str]:
    """Metric name of each gauge of a task."""
    return {gauge: family.of(task) for gauge, family in GAUGES.items()}


def judge(task: str, readings: Mapping[str, Sequence[float]]) -> Sameness | None:
    """Judge a task by its readings over some steps; ``None`` without any.

    Alike are answers of which nearly all prompts get the same, of which the batch holds hardly another, and which tell
    next to nothing of the prompt: a policy that draws from one wide distribution whatever is asked has not settled
    on an answer.  No fault is what also holds of perfect answers: a batch of prompts that all have the same right
    answer says nothing, and of those that can say something it takes a few.  Where nobody knows perfect answers, a
    reward close to 1 among rewards in [0, 1] tells that the one answer is right.  Answers that hardly ever parse are
    no answers.

    Args:
        task: Its name.
        readings: By gauge, as :func:`names` has them; absent ones are empty.
    """
    if not readings.get("top_share"):
        return None
    readings, steps = _telling(readings)
    share, entropy = stats.mean(readings["top_share"]), stats.mean(readings.get("entropy", ()))
    information = stats.mean(readings.get("information", ()))
    perfect_shares = readings.get("perfect_share", ())
    perfect = stats.mean(perfect_shares) if perfect_shares else None
    strength = (
        stats.ramp(share, *_SHARE_RANGE)
        * stats.ramp(entropy, *_ENTROPY_RANGE)
        * stats.ramp(information, *_INFORMATION_RANGE)
    )
    if readings.get("validity"):
        strength *= stats.ramp(stats.mean(readings["validity"]), *_VALID_RANGE)
    strength *= (
        1 - _near_top(readings.get("reward", ())) if perfect is None else stats.ramp(share - perfect, *_PERFECT_RANGE)
    )
    return Sameness(task, share, entropy, information, perfect, strength * stats.ramp(steps, FEW_STEPS, MANY_STEPS))


def _telling(readings: Mapping[str, Sequence[float]]) -> tuple[Mapping[str, Sequence[float]], int]:
    """The readings of steps whose perfect answers are not all alike, and how many steps these are.

    All of them where no step is such a one, or perfect answers are not known throughout.
    """
    share, perfect = readings["top_share"], readings.get("perfect_share", ())
    if len(share) != len(perfect):
        return readings, len(share)
    telling = [i for i, value in enumerate(perfect) if value < 1]
    if not telling:
        return readings, 0
    telling_readings = {
        name: [row[i] for i in telling] if len(row) == len(share) else row for name, row in readings.items()
    }
    return telling_readings, len(telling)


def tells(informations: Sequence[float]) -> bool:
    """Whether answers tell anything of their prompts: 0.15 nats on average of four steps or more, beyond chance."""
    told, n = stats.mean(informations), len(informations)
    return n >= _TOLD_STEPS and told >= TOLD and told > _TOLD_ERRORS * stats.spread(informations) / math.sqrt(n)


def stands_still(rewards: Sequence[float]) -> bool:
    """Whether the second half of the rewards is above the first by no more than two standard errors."""
    half = len(rewards) // 2
    if half < 2:
        return False
    gain = stats.mean(rewards[-half:]) - stats.mean(rewards[:-half])
    return gain <= 2 * stats.noise(rewards) * math.sqrt(2 / half) + 1e-9


def _near_top(rewards: Sequence[float]) -> float:
    if not rewards or min(rewards) < 0 or max(rewards) > _ONE:
        return 0.0
    return stats.ramp(stats.mean(rewards), *_NEAR_TOP)
