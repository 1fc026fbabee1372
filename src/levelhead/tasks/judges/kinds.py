"""Judged tasks of kinds that can do more than score: what they can do goes on behind the judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx2

from levelhead.errors import InputError
from levelhead.recipe.judge import Judge, Judges
from levelhead.recipe.tasks import Function, JudgedPrompts
from levelhead.records import Message, Prompt
from levelhead.tasks.base import Demonstrator, SingleTurnTask
from levelhead.tasks.function import FunctionTask
from levelhead.tasks.judges.task import JudgedTask
from levelhead.tasks.metering import RewardTally, Tallied


class JudgedFunction(JudgedTask):
    """A task whose rewards are the user's functions, which log and fail, with judges after them."""

    def drain_tally(self) -> RewardTally:
        """Return what the reward functions have logged and could not rate since the last call."""
        assert isinstance(self.task, Tallied)  # noqa: S101 - judged() has told the kinds apart
        return self.task.drain_tally()


class JudgedDemonstrator(JudgedTask):
    """A task that makes its own demonstrations, with judges after its rules."""

    async def demonstrate(self, prompt: Prompt) -> list[tuple[list[Message], str]]:
        """Return the judged task's demonstration."""
        assert isinstance(self.task, Demonstrator)  # noqa: S101 - judged() has told the kinds apart
        return await self.task.demonstrate(prompt)


class PromptsTask(FunctionTask):
    """Prompts from the user's data, whose answers only judges can tell apart.

    Args:
        section: The recipe's section.

    Raises:
        InputError: The data are missing or malformed.
    """

    def __init__(self, section: JudgedPrompts) -> None:
        shared = section.model_dump(include=set(Function.model_fields) & set(JudgedPrompts.model_fields) - {"kind"})
        shared = {key: value for key, value in shared.items() if key not in {"judge", "judges"}}
        if section.path is None:
            raise InputError("tasks[].path: a task of kind judge needs a file of prompts")
        super().__init__(Function(kind="function", **{**shared, "name": section.name or "judge"}), rewards=[answered])

    @property
    def rules(self) -> None:
        """There are none that tell answers apart: a score costs calls."""
        return None

    @property
    def part_weights(self) -> Mapping[str, float]:
        """Return no parts: the reward is the judges'."""
        return {}


def answered(prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float]:  # noqa: ARG001
    """Rate answers that hold anything at all 1, and those without a word 0."""
    texts = [one if isinstance(one, str) else str(one[-1]["content"]) for one in completions]
    return [float(bool(text.strip())) for text in texts]


def judged(
    task: SingleTurnTask, kind: str, section: Judge | Judges, transport: httpx2.AsyncBaseTransport | None = None
) -> JudgedTask:
    """Put judges behind a task, whatever else it can do.

    Args:
        task: Scores first, by its rules.
        kind: The task's kind, for the rubric.
        section: The recipe's ``judge`` or ``judges`` section.
        transport: Another way to the endpoints than the network, for tests.

    Raises:
        InputError: As :class:`JudgedTask`.
    """
    of_kind: type[JudgedTask] = JudgedTask
    if isinstance(task, Tallied):
        of_kind = JudgedFunction
    elif isinstance(task, Demonstrator):
        of_kind = JudgedDemonstrator
    return of_kind(task, kind, section, transport)
