"""Which knob to turn, and how far: every function returns knobs within the recipe's bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from levelhead.diagnosis import stats
from levelhead.diagnosis.sameness import Sameness
from levelhead.recipe.guard import Guard as Bounds
from levelhead.records import Knobs

FIRST_BONUS = 0.001
"""Entropy coefficient that is added at first; it doubles from there."""
LEAST_ENTROPY = 0.1
"""Lowest factor of an entropy coefficient that dissolves the policy."""


@dataclass(frozen=True, slots=True)
class Climate:
    """What the policy was like when its weights were kept, to tell what has changed since.

    Attributes:
        step: Step whose rollouts the kept weights drew.
        reward: Level of the reward.
        entropy: In nats a token; ``None`` where it was not measured.
        kl: From the reference, in nats a token; ``None`` without one.
    """

    step: int = 0
    reward: float | None = None
    entropy: float | None = None
    kl: float | None = None

    def to_json(self) -> dict[str, float | None]:
        """Return a dict of plain numbers."""
        return {"step": self.step, "reward": self.reward, "entropy": self.entropy, "kl": self.kl}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Climate:
        """Return what :meth:`to_json` wrote."""
        return cls(int(record["step"]), record["reward"], record["entropy"], record["kl"])


def slower(knobs: Knobs, factor: float, bounds: Bounds) -> Knobs:
    """Take the learning rate down."""
    return replace(knobs, learning_rate=max(knobs.learning_rate * factor, bounds.min_rate))


def faster(knobs: Knobs, factor: float, ceiling: float) -> Knobs:
    """Give back some of the learning rate."""
    return replace(knobs, learning_rate=min(knobs.learning_rate * factor, ceiling))


def more_entropy(knobs: Knobs, bounds: Bounds) -> Knobs:
    """Add to the entropy bonus, or double what was added."""
    bonus = min(max(2 * knobs.entropy_bonus, FIRST_BONUS), bounds.max_entropy_bonus)
    return replace(knobs, entropy_bonus=bonus, entropy=1.0)


def less_entropy(knobs: Knobs) -> Knobs:
    """Take back what was added to the entropy bonus, and a part of the recipe's own."""
    return replace(knobs, entropy_bonus=0.0, entropy=max(knobs.entropy / 4, LEAST_ENTROPY))


def shorter_leash(knobs: Knobs, bounds: Bounds) -> Knobs:
    """Double the KL coefficients."""
    return replace(knobs, kl=min(2 * knobs.kl, bounds.max_kl_factor))


def narrower_clip(knobs: Knobs, bounds: Bounds) -> Knobs:
    """Take a quarter off the clip range."""
    return replace(knobs, clip=max(0.75 * knobs.clip, bounds.min_clip))


def warmer(knobs: Knobs, bounds: Bounds) -> Knobs:
    """Draw a tenth warmer."""
    return replace(knobs, temperature=min(1.1 * knobs.temperature, bounds.max_temperature))


def more_draws(knobs: Knobs, bounds: Bounds) -> Knobs:
    """Draw once more in place of groups without contrast."""
    return replace(knobs, redraws=min(knobs.redraws + 1, bounds.max_redraws))


def after_collapse(knobs: Knobs, good: Climate, now: Climate, bounds: Bounds) -> Knobs:
    """Go on from good weights otherwise than the last time: slower, and against what changed most.

    An entropy that has grown tells that the bonus dissolved the policy, one that has gone that nothing kept it open;
    a KL several times that of the good weights tells that the leash is too long.
    """
    knobs = slower(knobs, bounds.rollback_rate, bounds)
    if good.entropy is not None and now.entropy is not None:
        if now.entropy > 1.5 * good.entropy + 0.1:
            knobs = less_entropy(knobs)
        elif now.entropy < 0.3 * good.entropy:
            knobs = more_entropy(knobs, bounds)
    if good.kl is not None and now.kl is not None and now.kl > 5 * max(good.kl, 0.01):
        knobs = shorter_leash(knobs, bounds)
    return knobs


def after_constant(knobs: Knobs, bounds: Bounds) -> Knobs:
    """Hold a policy that reads to what it can do, and keep it drawing other answers: KL and entropy bonus go up."""
    return shorter_leash(more_entropy(knobs, bounds), bounds)


def evidence_of(case: Sameness) -> dict[str, Any]:
    """The numbers behind one answer to everything."""
    shown = {"top_share": case.share, "entropy": case.entropy, "information": case.information}
    return {"task": case.task, **shown, "perfect_share": case.perfect}


def cut_of(scales: Sequence[float]) -> float:
    """Factor of a learning rate whose steps had to be scaled like that: their median, within reason."""
    return min(max(stats.median(scales), 0.3), 0.9)
