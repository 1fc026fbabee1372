"""The trust region: how much of a step may stand."""

from __future__ import annotations

import math
from collections.abc import Sequence

from levelhead.guard import messages
from levelhead.recipe.guard import Guard as Bounds
from levelhead.records import Change, Decision, Event

CODE = "large-update"
TRIALS = 4
"""Scales that are tried before the step is undone."""
SHORTEST, LONGEST = 0.1, 0.7
"""A new trial is this share of the one before, at least and at most."""


def judge(step: int, trials: Sequence[Change], bounds: Bounds) -> Decision | None:
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
    text += messages.SHORTENED(scale=scale) if scale else messages.UNDONE()
    event = Event(
        step,
        CODE,
        "warning",
        text + messages.SPENT() if spent else text,
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


def _astray(change: Change, bounds: Bounds) -> bool:
    """Whether a step led on, beyond where the policy that sampled the batch is any guide."""
    before, after = change.drift
    return after > max(bounds.batch_kl, before)


def _share(change: Change, bounds: Bounds) -> float:
    """Share of a step that has gone too far which would not."""
    before, after = (math.sqrt(drift) for drift in change.drift)
    if not math.isfinite(change.kl + after):
        return SHORTEST
    share = math.sqrt(bounds.max_kl / change.kl) if change.kl else 1.0
    if after > before:
        share = min(share, (math.sqrt(bounds.batch_kl) - before) / (after - before))
    return min(max(0.9 * share, SHORTEST), LONGEST)
