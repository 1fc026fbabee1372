"""What a workflow is run on, and the order of an epoch: domains in the ratios asked for, spread evenly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from levelhead.errors import InputError
from levelhead.tasks.datasets.base import DIFFICULTIES, Difficulty, Domain, Example
from levelhead.tasks.splits import in_seed_order

__all__ = ["DIFFICULTIES", "DOMAINS", "Difficulty", "Domain", "Problem"]

DOMAINS: tuple[Domain, ...] = ("math", "code", "qa")


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem.

    Attributes:
        id: Unique within the task and stable across runs.
        question: What the policy and the operators read.
        answers: Right answers, any of which will do.  For ``code`` without ``tests`` there are none.
        domain: What kind of problem it is.
        difficulty: Seen by the simulator and the reports, never by the policy.
        entry_point: Name of the function that was asked for (``code``).
        tests: Python that asserts what the function must do (``code``).
        dataset: The public data set that it is from, whose checker judges answers; empty where the domain's does.
        example: What that checker needs.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    domain: Domain
    difficulty: Difficulty = "medium"
    entry_point: str | None = None
    tests: str | None = None
    dataset: str = ""
    example: Example | None = None

    @property
    def preamble(self) -> str:
        """Return the Python that stands before a program that solves it."""
        return f"{self.example.preamble}\n\n" if self.example is not None and self.example.preamble else ""


def epoch(problems: Sequence[Problem], ratios: Mapping[Domain, float] | None, seed: int, *names: str) -> list[Problem]:
    """Return the problems of one epoch, in an order that depends on the seed alone.

    Without ratios, all of them, shuffled.  With ratios, as many of each domain as the scarcest allows, drawn afresh for
    every seed, and at every point of the order as close to the ratios as whole problems can be.

    Raises:
        InputError: A domain was asked for that has no problems.
    """
    if ratios is None:
        return in_seed_order(problems, seed, *names)
    pools: dict[Domain, list[Problem]] = {
        domain: in_seed_order([p for p in problems if p.domain == domain], seed, *names, domain) for domain in ratios
    }
    empty = [domain for domain, pool in pools.items() if not pool]
    if empty:
        raise InputError(f"tasks[].domains asks for {empty[0]!r}, and the data hold no problem of that domain")
    size = min(len(pool) / ratios[domain] for domain, pool in pools.items())
    quotas = {domain: max(1, int(size * ratio + 1e-9)) for domain, ratio in ratios.items()}
    # The k-th of n problems stands at (k + 1/2) / n of the way, whichever domain it is from.
    places = [((k + 0.5) / quota, domain, pools[domain][k]) for domain, quota in quotas.items() for k in range(quota)]
    return [problem for _, _, problem in sorted(places, key=lambda place: place[:2])]
