"""The protocol of whatever runs workflows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from levelhead.contrib.workflow.language import Node
from levelhead.contrib.workflow.problems.base import Problem


@dataclass(frozen=True, slots=True)
class Job:
    """One workflow to run on one problem.

    Attributes:
        tree: The workflow, checked.
        text: Its canonical text.
        problem: What it is run on.
        sample: Tells runs of the same workflow on the same problem apart; equal jobs have equal outcomes.
    """

    tree: Node
    text: str
    problem: Problem
    sample: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run led to.

    Attributes:
        level: How right the answer is, one of ``reward.LEVELS``.
        first_level: How right the first draft was, before anything judged, revised or chose.
        tokens: Tokens its operators used; answers that came from a cache count as if they had been asked for.
        calls: Operators that were run.
        answer: The final answer; empty in the simulator.
        note: Anything a reader of samples should know (why there is no answer).
    """

    level: float
    first_level: float
    tokens: int
    calls: int
    answer: str = ""
    note: str = ""


class Executor(Protocol):
    """Runs workflows."""

    async def execute(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Run all jobs and return their outcomes in order.

        Raises:
            RewardError: The jobs cannot be run to their end; nothing of them is lost where a cache is kept.
        """
        ...

    def metrics(self) -> Mapping[str, float]:
        """Return what running workflows has cost so far; nothing where it costs nothing."""
        ...

    def drain_news(self) -> Sequence[str]:
        """Return what a person should know of the executor since the last call, a line each."""
        ...
