"""The one list of mutations: of checks of the users' preflight, and of proofs of ``tests/oracle``.

``tests/preflight/test_mutations.py`` turns each red. A check whose mutations need more than a preflight has them in a
module of its own (:data:`ELSEWHERE`); ``docs/experiments/preflight.md`` says of each check where it turns red.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from levelhead.preflight.check import Broken
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
    "FAMILY/error": "reports that another check broke off",
}
"""Checks without mutations, each with its reason."""
ELSEWHERE = {
    "custom/": "tests/preflight/test_custom.py",
    "data/": "tests/preflight/test_data.py",
    "data/overlong/": "tests/preflight/test_thoughts_and_tags.py",
    "judges/calibration/": "tests/preflight/test_judges.py",
    "memory/micro-batch": "tests/preflight/test_micro_batch.py",
    "pairs/": "tests/preflight/test_pairs.py",
    "precision/": "tests/preflight/test_data.py",
    "rewards/cheap/": "tests/faults/test_brought.py",
    "tools/": "tests/tasks/test_tools.py",
    "rewards/opened-thought/": "tests/preflight/test_thoughts_and_tags.py",
    "rewards/range/": "tests/preflight/test_reward_mutations.py",
    "rewards/round-trip/": "tests/preflight/test_reward_mutations.py",
    "rewards/steady/": "tests/preflight/test_reward_mutations.py",
    "sampling/controls": "tests/preflight/test_shared_passes.py",
    "signs/descent": "tests/preflight/test_shared_passes.py",
    "tokens/lost-text/": "tests/preflight/test_thoughts_and_tags.py",
    "tokens/spelled-tags/": "tests/preflight/test_thoughts_and_tags.py",
}
"""Checks, by how their names begin, with three mutations or more in a module of their own."""
PROVED_ELSEWHERE = {
    "sampling/repeats": "tests/oracle/test_sampling_mutations.py",
    "sampling/distribution": "tests/oracle/test_sampling_mutations.py",
    "sampling/returns": "tests/oracle/test_sampling_mutations.py",
    "sampling/processes": "tests/oracle/test_sampling_mutations.py",
    "sampling/shares": "tests/oracle/test_sampling_mutations.py",
    "sampling/redraws": "tests/oracle/test_sampling_mutations.py",
    "objective/": "tests/oracle/test_objective.py",
    "advantages/": "tests/oracle/test_batch_advantages.py",
    "merge/": "tests/oracle/test_merged.py",
}
"""Proofs of the test suite, likewise."""
PROOFS = """These are no checks of the preflight: they prove Levelhead's own arithmetic, which is the same on every
machine, so that the test suite makes them (`tests/oracle`)."""


def is_elsewhere(check: str) -> bool:
    """Whether a check's mutations are in another module."""
    return check.startswith(tuple(ELSEWHERE))


def checks_as_markdown() -> str:
    """The table of docs/preflight.md: each check, what it needs, and what a pass proves."""
    checks = [check for check in CATALOGUE.values() if check is not Broken]
    rows = [f"| `{check.name}` | {check.needs} | {check.proves.text({}, 'en')} |" for check in checks]
    return "\n".join(["| check | needs | what a pass proves |", "|---|---|---|", *rows])


def as_markdown() -> str:
    """The tables of docs/experiments/preflight.md: what turns each check red, and each proof of the test suite."""
    proofs = dict.fromkeys(mutation.check for mutation in MUTATIONS if mutation.check not in CATALOGUE)
    return f"{_rows('check', CATALOGUE, ELSEWHERE)}\n\n{PROOFS}\n\n{_rows('proof', proofs, PROVED_ELSEWHERE)}"


def _rows(title: str, names: Iterable[str], elsewhere: Mapping[str, str]) -> str:
    lines = [f"| {title} | turns red where |", "|---|---|"]
    for check in names:
        listed = [mutation.what.replace("|", "\\|") for mutation in MUTATIONS if mutation.check == check]
        if check in WITHOUT:
            lines.append(f"| `{check}` | (no mutation: {WITHOUT[check]}) |")
        elif listed:
            lines.append(f"| `{check}` | {'; '.join(listed)} |")
    for check, module in elsewhere.items():
        lines.append(f"| `{check}{'...' if check.endswith('/') else ''}` | (in `{module}`) |")
    return "\n".join(lines)
