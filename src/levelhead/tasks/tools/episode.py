"""An answer that may call tools on the way: turn by turn, until a turn calls none."""

from __future__ import annotations

from dataclasses import replace

from levelhead.records import Message, Prompt
from levelhead.tasks.base import Answer, SingleTurnTask, Step
from levelhead.tasks.tools.formats import CallError
from levelhead.tasks.tools.toolbox import Toolbox, answering, calling


class ToolEpisode:
    """One attempt at a prompt with tools.

    The score's ``info`` holds the number of ``turns``, ``calls`` and ``failed_calls``.

    Args:
        task: Scores the last turn's text; shown the turns before it.
        tools: What may be called.
        prompt: What is asked.
    """

    def __init__(self, task: SingleTurnTask, tools: Toolbox, prompt: Prompt) -> None:
        self._task, self._tools, self._prompt = task, tools, prompt
        self._messages: list[Message] = list(prompt.messages)
        self._before: tuple[Message, ...] = ()
        self.completion_ids: tuple[int, ...] = ()
        self._turns = self._calls = self._failed = 0

    async def observe(self) -> list[Message]:
        """Return the conversation so far."""
        return list(self._messages)

    async def act(self, text: str) -> Step:
        """Execute the calls of a turn; one that calls nothing, or that no other can follow, is the answer."""
        self._turns += 1
        self._before = tuple(self._messages[len(self._prompt.messages) :])
        if self._turns >= self._tools.section.turns:
            return await self._score(text)
        try:
            said, calls = self._tools.read(text)
        except CallError as error:
            self._failed += 1
            self._messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"error: {error}"}]
            return await self._go_on(text)
        if not calls:
            return await self._score(text)
        self._messages.append(calling(said.strip(), calls))
        for index, call in enumerate(calls):
            result = await self._tools.run(call, self._prompt.chat)
            self._calls, self._failed = self._calls + 1, self._failed + result.failed
            self._messages.append(answering(index, call, result.text))
        return await self._go_on(text)

    async def close(self) -> None:
        """Hold nothing."""

    async def _go_on(self, text: str) -> Step:
        room = self._tools.has_room(self._messages, self._prompt.chat)
        return Step(done=False) if room else await self._score(text)

    async def _score(self, text: str) -> Step:
        (score,) = await self._task.rewarded([Answer(self._prompt, text, self.completion_ids, self._before)])
        counts = {"turns": self._turns, "calls": self._calls, "failed_calls": self._failed}
        return Step(True, None if score is None else replace(score, info={**score.info, **counts}))
