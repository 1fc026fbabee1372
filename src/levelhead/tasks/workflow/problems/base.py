"""What a workflow is run on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Domain = Literal["math", "code", "qa"]
Difficulty = Literal["easy", "medium", "hard"]

DOMAINS: tuple[Domain, ...] = ("math", "code", "qa")
DIFFICULTIES: tuple[Difficulty, ...] = ("easy", "medium", "hard")


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
    """

    id: str
    question: str
    answers: tuple[str, ...]
    domain: Domain
    difficulty: Difficulty = "medium"
    entry_point: str | None = None
    tests: str | None = None
