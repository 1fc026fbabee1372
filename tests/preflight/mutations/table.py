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
ELSEWHERE = {
    "identities/": "tests/preflight/test_identities.py",
    "judges/calibration/": "tests/preflight/test_judges.py",
    "objective/": "tests/preflight/test_objective.py",
    "pairs/": "tests/preflight/test_pairs.py",
    "rewards/range/": "tests/preflight/test_reward_mutations.py",
    "rewards/round-trip/": "tests/preflight/test_reward_mutations.py",
    "rewards/shaped": "tests/preflight/test_reward_mutations.py",
    "rewards/steady/": "tests/preflight/test_reward_mutations.py",
    "rewards/total/": "tests/preflight/test_reward_mutations.py",
    "sampling/distribution": "tests/preflight/test_sampling_mutations.py",
    "sampling/processes": "tests/preflight/test_sampling_mutations.py",
    "sampling/redraws": "tests/preflight/test_sampling_mutations.py",
    "sampling/repeats": "tests/preflight/test_sampling_mutations.py",
    "sampling/returns": "tests/preflight/test_sampling_mutations.py",
    "sampling/shares": "tests/preflight/test_sampling_mutations.py",
}
"""Checks, by how their names begin, with three mutations or more in a module of their own."""


def is_elsewhere(check: str) -> bool:
    """Whether a check's mutations are in another module."""
    return check.startswith(tuple(ELSEWHERE))


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
