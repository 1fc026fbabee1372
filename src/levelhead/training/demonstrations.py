"""Perfect episodes: what tasks whose answers depend on an environment show to supervised fine-tuning."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from levelhead.errors import InputError
from levelhead.records import Message, Prompt
from levelhead.tasks.base import EpisodeLostError, Task
from levelhead.training.loop import EventLoop

KEPT = 4096
"""Episodes that are remembered, so that later epochs need not play them again."""

Shown = Sequence[tuple[Sequence[Message], str]]
"""The messages and the answer of each turn."""


class Demonstrations:
    """Asks oracles, and lets demonstrators act; episodes are played side by side, and once.

    Args:
        tasks: By name.
        loop: Where demonstrators act.
    """

    def __init__(self, tasks: Mapping[str, Task], loop: EventLoop) -> None:
        self._tasks = tasks
        self._loop = loop
        self._played: dict[tuple[str, str], Shown] = {}

    def show(self, prompts: Sequence[Prompt]) -> list[Shown]:
        """Return the turns of each prompt's demonstration, none where its episode did not succeed.

        Raises:
            InputError: A task has no oracle for one of the prompts.
        """
        acted = [p for p in prompts if self._tasks[p.task].demonstrates]
        fresh = {(p.task, p.id): p for p in acted if (p.task, p.id) not in self._played}
        played = dict(self._played)
        if fresh:
            played |= zip(fresh, self._loop.run(self._play(list(fresh.values()))), strict=True)
            self._played = dict(list(played.items())[-KEPT:])
        return [
            played[prompt.task, prompt.id] if (prompt.task, prompt.id) in played else self._answer(prompt)
            for prompt in prompts
        ]

    async def _play(self, prompts: Sequence[Prompt]) -> list[Shown]:
        return await asyncio.gather(*(self._demonstrate(prompt) for prompt in prompts))

    async def _demonstrate(self, prompt: Prompt) -> Shown:
        task = self._tasks[prompt.task]
        try:
            return await task.demonstrate(prompt)
        except EpisodeLostError:
            return []

    def _answer(self, prompt: Prompt) -> Shown:
        answers = self._tasks[prompt.task].oracle(prompt)
        if not answers:
            raise InputError(
                f"sft: task {prompt.task!r} has no perfect answer for prompt {prompt.id!r}; "
                "give it an oracle column, or remove the sft section"
            )
        return [(prompt.messages, answers[0])]
