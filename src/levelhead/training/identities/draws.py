"""Identities of what was sampled: no rollout is lost on the way, and the weights that sample are the policy's."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from levelhead.policy.policy import Policy
from levelhead.training.collect import Collected
from levelhead.training.identities.base import Violation, some

STRIDE = 61
"""One entry in so many of each weight is compared."""


def accounted(rollouts: Collected) -> Iterator[Violation]:
    """Every rollout that was sampled is in its group, or its task gave it no score."""
    lost = rollouts.dropped - rollouts.unscored
    if lost:
        drawn = rollouts.episodes + rollouts.dropped
        text = (
            f"of {drawn} rollouts {rollouts.dropped} are left out of their group, and their tasks gave no score to "
            f"{rollouts.unscored}; rollouts {'missing' if lost > 0 else 'counted twice'}: {abs(lost)}"
        )
        yield Violation("rollouts-missing", text, {"drawn": drawn, "left_out": rollouts.dropped, "lost": lost})


@torch.no_grad()
def same_weights(copy: Policy, policy: Policy) -> Iterator[Violation]:
    """A copy of the policy that samples has its weights after a sync, to the bit."""
    stale = [
        name
        for (name, mine), theirs in zip(copy.model.named_parameters(), policy.model.parameters(), strict=True)
        if mine is not theirs and not torch.equal(mine.reshape(-1)[::STRIDE], theirs.reshape(-1)[::STRIDE])
    ]
    if stale:
        text = (
            f"after the weight sync the copy that draws the next batch has other weights than the policy in "
            f"{some(stale)}: the batch is drawn by older weights than off_policy/mean says"
        )
        yield Violation("weight-sync", text, {"weights": stale[:8], "version": policy.version})
