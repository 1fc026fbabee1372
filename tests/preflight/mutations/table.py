"""All mutations, and the checks that have none."""

from __future__ import annotations

from levelhead.preflight.explain import CATALOGUE
from preflight.mutations import agreement, loss, resources, rewards, sampler, tokens
from preflight.mutations.base import Mutation

MUTATIONS: tuple[Mutation, ...] = (
    *tokens.MUTATIONS,
    *sampler.MUTATIONS,
    *agreement.MUTATIONS,
    *loss.MUTATIONS,
    *rewards.MUTATIONS,
    *resources.MUTATIONS,
)

WITHOUT = {
    "throughput/step": "says how long a step takes, and never fails",
}
"""Checks without mutations, each with its reason."""


def as_markdown() -> str:
    """The table of docs/preflight.md: each check, and what turns it red."""
    lines = ["| check | turns red where |", "|---|---|"]
    for check in CATALOGUE:
        listed = [mutation.what.replace("|", "\\|") for mutation in MUTATIONS if mutation.check == check]
        if check in WITHOUT:
            lines.append(f"| `{check}` | (no mutation: {WITHOUT[check]}) |")
        elif listed:
            lines.append(f"| `{check}` | {'; '.join(listed)} |")
    return "\n".join(lines)
