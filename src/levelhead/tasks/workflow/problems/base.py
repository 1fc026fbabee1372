"""What a workflow is run on."""

from __future__ import annotations

from dataclasses import dataclass

from levelhead.tasks.datasets.base import DIFFICULTIES, Difficulty, Domain, Example

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
