"""All mutations, and the checks that have none."""

from __future__ import annotations

from collections.abc import Iterable

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
    "memory/micro-batch": "runs on a GPU alone",
    "FAMILY/error": "reports that another check broke off",
}
"""Checks without mutations, each with its reason."""
ELSEWHERE = {
    "custom/": "tests/preflight/test_custom.py",
    "data/": "tests/preflight/test_data.py",
    "data/overlong/": "tests/preflight/test_thoughts_and_tags.py",
    "judges/calibration/": "tests/preflight/test_judges.py",
    "pairs/": "tests/preflight/test_pairs.py",
    "precision/": "tests/preflight/test_data.py",
    "rewards/cheap/": "tests/faults/test_brought.py",
    "tools/": "tests/tasks/test_tools.py",
    "rewards/opened-thought/": "tests/preflight/test_thoughts_and_tags.py",
    "rewards/range/": "tests/preflight/test_reward_mutations.py",
    "rewards/round-trip/": "tests/preflight/test_reward_mutations.py",
    "rewards/steady/": "tests/preflight/test_reward_mutations.py",
    "sampling/controls": "tests/preflight/test_passes.py",
    "signs/descent": "tests/preflight/test_passes.py",
    "tokens/lost-text/": "tests/preflight/test_thoughts_and_tags.py",
    "tokens/spelled-tags/": "tests/preflight/test_thoughts_and_tags.py",
}
"""Checks, by how their names begin, with three mutations or more in a module of their own."""
PROOFS = """These are no checks of the preflight: they prove Levelhead's own arithmetic, which is the same on every
machine, so that the test suite makes them (`tests/oracle`)."""


def is_elsewhere(check: str) -> bool:
    """Whether a check's mutations are in another module."""
    return check.startswith(tuple(ELSEWHERE))


def as_markdown() -> str:
    """The tables of docs/preflight.md: what turns each check red, and each proof of the test suite."""
    proofs = dict.fromkeys(mutation.check for mutation in MUTATIONS if mutation.check not in CATALOGUE)
    return f"{_rows('check', CATALOGUE)}\n\n{PROOFS}\n\n{_rows('proof', proofs)}"


def _rows(title: str, names: Iterable[str]) -> str:
    lines = [f"| {title} | turns red where |", "|---|---|"]
    for check in names:
        listed = [mutation.what.replace("|", "\\|") for mutation in MUTATIONS if mutation.check == check]
        if check in WITHOUT:
            lines.append(f"| `{check}` | (no mutation: {WITHOUT[check]}) |")
        elif listed:
            lines.append(f"| `{check}` | {'; '.join(listed)} |")
    return "\n".join(lines)
