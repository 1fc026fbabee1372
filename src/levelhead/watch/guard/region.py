"""The trust region: how much of a step may stand."""

from __future__ import annotations

import math
from collections.abc import Sequence

from levelhead.recipe.guard import Guard as Bounds
from levelhead.records import Change, Decision, Event

CODE = "large-update"
TRIALS = 4
"""Scales that are tried before the step is undone."""
SHORTEST, LONGEST = 0.1, 0.7
"""A new trial is this share of the one before, at least and at most."""


def judge(step: int, trials: Sequence[Change], bounds: Bounds) -> Decision | None:
    """Ask for a shorter step where the last trial went too far.

    To second order the KL grows with the square of the step, so the next scale is the root of what is allowed over
    what was measured, a little less; a step that cannot be shortened enough is undone.

    Args:
        step: Of the run.
        trials: The whole step first, then each scale that was tried.
        bounds: The recipe's.
    """
    first, last = trials[0], trials[-1]
    if last.kl <= bounds.max_kl or last.scale <= 0:
        return None
    share = SHORTEST
    if math.isfinite(last.kl):
        share = min(max(0.9 * math.sqrt(bounds.max_kl / last.kl), SHORTEST), LONGEST)
    scale = last.scale * share if len(trials) <= TRIALS else 0.0
    event = Event(
        step,
        CODE,
        "warning",
        f"the update moved the policy by {first.kl:.3g} nats a token, more than {bounds.max_kl:g}; "
        + (f"{scale:.2g} of it stands" if scale else "it was undone"),
        "shrink",
        {
            "kl": first.kl,
            "max_kl": bounds.max_kl,
            "max_logp_change": first.most,
            "entropy_before": first.entropy[0],
            "entropy_after": first.entropy[1],
            "scale": scale,
        },
    )
    return Decision("shrink", event, {"scale": scale})
