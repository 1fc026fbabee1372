"""What the guard does: how much of a step may stand, which coefficient it overrides, and how far."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from levelhead.diagnosis import stats
from levelhead.diagnosis.sameness import Sameness
from levelhead.guard import messages
from levelhead.recipe.guard import Guard as GuardSection
from levelhead.records import Change, CoefficientOverrides, Decision, Event

LARGE_UPDATE = "large-update"
TRIALS = 4
"""Scales that are tried before the step is undone."""
SHORTEST, LONGEST = 0.1, 0.7
"""A new trial is this share of the one before, at least and at most."""


def trust_region(step: int, trials: Sequence[Change], bounds: GuardSection) -> Decision | None:
    """Ask for a shorter step where the last trial went too far, by itself or with those before it on its batch.

    To second order the KL grows with the square of the way, so the next scale is the root of what is allowed over
    what was measured, a little less; a step that cannot be shortened enough is undone.  Where the batch's steps
    together went too far, their ways are taken to add up, and its later steps are left out (``spent``).

    Args:
        step: Of the run.
        trials: The whole step first, then each scale that was tried.
        bounds: The recipe's.
    """
    first, last = trials[0], trials[-1]
    astray = _astray(last, bounds)
    if (last.kl <= bounds.max_kl and not astray) or last.scale <= 0:
        return None
    spent = astray or _astray(first, bounds)
    scale = last.scale * _share(last, bounds) if len(trials) <= TRIALS else 0.0
    if spent:
        text = messages.DRIFTED(kl=first.drift[1], most=bounds.batch_kl)
    else:
        text = messages.MOVED(kl=first.kl, most=bounds.max_kl)
    if bounds.policy == "protect":
        text += messages.SHORTENED(scale=scale) if scale else messages.UNDONE()
        if spent:
            text += messages.SPENT()
    event = Event(
        step,
        LARGE_UPDATE,
        "warning",
        text,
        "shrink",
        {
            "kl": first.kl,
            "max_kl": bounds.max_kl,
            "drift_before": first.drift[0],
            "drift": first.drift[1],
            "max_batch_kl": bounds.batch_kl,
            "max_logp_change": first.most,
            "entropy_before": first.entropy[0],
            "entropy_after": first.entropy[1],
            "scale": scale,
        },
    )
    return Decision("shrink", event, {"scale": scale, "spent": spent})


def _astray(change: Change, bounds: GuardSection) -> bool:
    """Whether a step led on, beyond where the policy that sampled the batch is any guide."""
    before, after = change.drift
    return after > max(bounds.batch_kl, before)


def _share(change: Change, bounds: GuardSection) -> float:
    """Share of a step that has gone too far which would not."""
    before, after = (math.sqrt(drift) for drift in change.drift)
    if not math.isfinite(change.kl + after):
        return SHORTEST
    share = math.sqrt(bounds.max_kl / change.kl) if change.kl else 1.0
    if after > before:
        share = min(share, (math.sqrt(bounds.batch_kl) - before) / (after - before))
    return min(max(0.9 * share, SHORTEST), LONGEST)


class Intervention(enum.StrEnum):
    """What the guard does about a finding while training; the files of the findings use these names."""

    RAISE_ENTROPY = "raise-entropy-bonus"
    LOWER_ENTROPY = "lower-entropy-bonus"
    RAISE_KL = "raise-kl-coefficient"
    REDRAW = "redraw-groups"


FIRST_BONUS = 0.001
"""Entropy coefficient that is added at first; it doubles from there."""
LEAST_ENTROPY = 0.1
"""Lowest factor of an entropy coefficient that dissolves the policy."""


@dataclass(frozen=True, slots=True)
class RecentStatistics:
    """What the policy was like when its weights were kept, to tell what has changed since.

    Attributes:
        step: Step whose rollouts the kept weights sampled.
        reward: Level of the reward.
        entropy: In nats a token; ``None`` where it was not measured.
        kl: From the reference, in nats a token; ``None`` without one.
    """

    step: int = 0
    reward: float | None = None
    entropy: float | None = None
    kl: float | None = None


def slower(overrides: CoefficientOverrides, factor: float, bounds: GuardSection) -> CoefficientOverrides:
    """Take the learning rate down."""
    return replace(overrides, learning_rate=max(overrides.learning_rate * factor, bounds.min_rate))


def faster(overrides: CoefficientOverrides, factor: float, ceiling: float) -> CoefficientOverrides:
    """Give back some of the learning rate."""
    return replace(overrides, learning_rate=min(overrides.learning_rate * factor, ceiling))


def more_entropy(overrides: CoefficientOverrides, bounds: GuardSection) -> CoefficientOverrides:
    """Add to the entropy bonus, or double what was added."""
    bonus = min(max(2 * overrides.entropy_bonus, FIRST_BONUS), bounds.max_entropy_bonus)
    return replace(overrides, entropy_bonus=bonus, entropy=1.0)


def less_entropy(overrides: CoefficientOverrides) -> CoefficientOverrides:
    """Take back what was added to the entropy bonus, and a part of the recipe's own."""
    return replace(overrides, entropy_bonus=0.0, entropy=max(overrides.entropy / 4, LEAST_ENTROPY))


def raise_kl(overrides: CoefficientOverrides, bounds: GuardSection) -> CoefficientOverrides:
    """Double the KL coefficients, up to ``max_kl_factor`` times the recipe's."""
    return replace(overrides, kl=min(2 * overrides.kl, bounds.max_kl_factor))


def narrower_clip(overrides: CoefficientOverrides, bounds: GuardSection) -> CoefficientOverrides:
    """Take a quarter off the clip range."""
    return replace(overrides, clip=max(0.75 * overrides.clip, bounds.min_clip))


def warmer(overrides: CoefficientOverrides, bounds: GuardSection) -> CoefficientOverrides:
    """Raise the sampling temperature by a tenth, up to ``max_temperature`` times the recipe's."""
    return replace(overrides, temperature=min(1.1 * overrides.temperature, bounds.max_temperature))


def more_draws(overrides: CoefficientOverrides, bounds: GuardSection) -> CoefficientOverrides:
    """Draw once more in place of groups without contrast."""
    return replace(overrides, redraws=min(overrides.redraws + 1, bounds.max_redraws))


def after_collapse(
    overrides: CoefficientOverrides, good: RecentStatistics, now: RecentStatistics, bounds: GuardSection
) -> CoefficientOverrides:
    """Go on from good weights otherwise than the last time: slower, and against what changed most.

    An entropy that has grown tells that the bonus dissolved the policy, one that has gone that nothing kept it open;
    a KL several times that of the good weights tells that the KL penalty is too weak.
    """
    overrides = slower(overrides, bounds.rollback_rate, bounds)
    if good.entropy is not None and now.entropy is not None:
        if now.entropy > 1.5 * good.entropy + 0.1:
            overrides = less_entropy(overrides)
        elif now.entropy < 0.3 * good.entropy:
            overrides = more_entropy(overrides, bounds)
    if good.kl is not None and now.kl is not None and now.kl > 5 * max(good.kl, 0.01):
        overrides = raise_kl(overrides, bounds)
    return overrides


def evidence_of(case: Sameness) -> dict[str, Any]:
    """The numbers behind one answer to everything."""
    shown = {"top_share": case.share, "entropy": case.entropy, "information": case.information}
    return {"task": case.task, **shown, "perfect_share": case.perfect}


def cut_of(scales: Sequence[float]) -> float:
    """Factor of a learning rate whose steps had to be scaled like that: their median, within reason."""
    return min(max(stats.median(scales), 0.3), 0.9)
