"""Training on an OpenEnv server: each episode is a session, each turn a step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from levelhead.contrib.browser.view import SYSTEM_PROMPT
from levelhead.contrib.openenv.tools import call_action, list_tools, result_of
from levelhead.contrib.openenv.wire import Reply, WireError, written
from levelhead.errors import InputError
from levelhead.installation import install_command
from levelhead.recipe.environments import OpenEnv
from levelhead.records import ChatMessage, Prompt, Score
from levelhead.tasks.environment import EnvironmentTask, SeededEpisode
from levelhead.tasks.tool_formats import CallError
from levelhead.tasks.tool_reader import CallReader, answering, calling, typed

if TYPE_CHECKING:
    from levelhead.contrib.openenv.client import OpenEnvClient

TOOLS_PROMPT = "Reach the goal by calling the tools; answer without a call when you are done."
CALLS = 8
"""Most calls in a turn."""


class OpenEnvTask(EnvironmentTask):
    """The tasks of an OpenEnv server, by default one that speaks as its BrowserGym environment does.

    Connections are kept between episodes.

    Args:
        section: The recipe's section.

    Raises:
        InputError: The package ``websockets`` is missing; or ``tools`` is set, and the server is not there or has none.
    """

    def __init__(self, section: OpenEnv) -> None:
        if find_spec("websockets") is None:
            raise InputError(f"the openenv task needs the package websockets: {install_command('browser')}")
        default = TOOLS_PROMPT if section.tools else SYSTEM_PROMPT
        super().__init__(section, default if section.system is None else section.system)
        self.section = section
        self.tools: CallReader | None = CallReader(CALLS, list_tools(section)) if section.tools else None
        self.reached = False
        self._idle: list[OpenEnvClient] = []
        self._slots: asyncio.Semaphore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def concurrency(self) -> int:
        """Most episodes that can be live at once."""
        return self.section.sessions

    @property
    def system(self) -> str:
        """The system message of every turn."""
        return self._system

    def episode(self, prompt: Prompt) -> OpenEnvEpisode:
        """Start an attempt at a prompt."""
        return OpenEnvEpisode(self, prompt) if self.tools is None else ToolCallEpisode(self, self.tools, prompt)

    def prompt(self, name: str, seed: int) -> Prompt:
        """Return the prompt of one task and seed, with the server's tools where the policy calls them."""
        prompt = super().prompt(name, seed)
        return prompt if self.tools is None else replace(prompt, chat=self.tools.chat(prompt.chat))

    async def lend(self) -> OpenEnvClient:
        """Lend a connection, until :meth:`give_back`; waits while all are out."""
        from levelhead.contrib.openenv.client import OpenEnvClient

        loop = asyncio.get_running_loop()
        if self._slots is None or self._loop is not loop:
            self._slots, self._loop, self._idle = asyncio.Semaphore(self.section.sessions), loop, []
        await self._slots.acquire()
        return self._idle.pop() if self._idle else OpenEnvClient(self.section.url, self.section.timeout)

    async def give_back(self, client: OpenEnvClient, *, fit: bool) -> None:
        """Take a connection back; one that is not fit for further use is closed."""
        if fit:
            self._idle.append(client)
        else:
            await client.close()
        if self._slots is not None:
            self._slots.release()

    async def close(self) -> None:
        """Close all connections that play no episode."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(client.close() for client in idle))


class OpenEnvEpisode(SeededEpisode["OpenEnvClient"]):
    """One session on the server, over a connection of the task's."""

    faults = (ConnectionError, WireError)

    def __init__(self, task: OpenEnvTask, prompt: Prompt) -> None:
        super().__init__(str(prompt.facts["task"]), int(prompt.facts["seed"]), task.section.step_limit, task.report)
        self._task = task
        self._reply = Reply({}, None, done=False)

    async def _open(self) -> None:
        self.place = await self._task.lend()
        task = {"task_name": self.name} if self.name else {}
        self._reply = await self.place.reset(seed=self.seed, **task)
        self._task.reached = True

    async def _give_back(self, place: OpenEnvClient, *, fit: bool) -> None:
        await self._task.give_back(place, fit=fit)

    async def _perform(self, place: OpenEnvClient, text: str) -> float:
        return await self._take(place, {self._task.section.action: text.strip()})

    async def _take(self, place: OpenEnvClient, action: Mapping[str, Any]) -> float:
        self._reply = await place.step(action)
        self._ended = "server" if self._reply.done else ""
        return self._reply.reward or 0.0

    def _messages(self) -> list[ChatMessage]:
        return [{"role": "system", "content": self._task.system}, {"role": "user", "content": self._shown()}]

    def _shown(self) -> str:
        """Write step and observation; the last field stands on lines of its own."""
        fields = self._task.section.observation
        lines = [f"Step {self.step}"]
        for number, (field, word) in enumerate(fields.items(), 1):
            value = self._reply.observation.get(field)
            if value in (None, "", [], {}):
                continue
            text = self._cut(written(value))
            lines.append(f"{word}:{chr(10) if number == len(fields) else ' '}{text}")
        return "\n".join(lines)

    def _cut(self, text: str) -> str:
        limit = self._task.section.observation_chars
        return text if len(text) <= limit else text[: limit - 3] + "..."

    def _fault(self, error: ConnectionError | WireError) -> tuple[str, str]:
        if isinstance(error, WireError):
            return "server-refused", str(error)
        if not self._task.reached:
            raise InputError(f"{error}; start the server, or correct tasks[].url") from error
        return "server-lost", str(error)

    def _score(self, facts: Mapping[str, Any]) -> Score:
        return Score(
            total=self.reward,
            parts={"success": float(self.reward > self._task.section.success_above), "return": self.reward},
            valid=not self._reply.observation.get("last_action_error", False),
            info={"task": self.name, **facts},
        )


class ToolCallEpisode(OpenEnvEpisode):
    """One session whose actions are calls of tools; the conversation grows by a turn each, and ends without a call.

    The score's ``info`` holds the number of ``calls`` and ``failed_calls``.
    """

    def __init__(self, task: OpenEnvTask, tools: CallReader, prompt: Prompt) -> None:
        super().__init__(task, prompt)
        self._tools, self._options = tools, prompt.chat
        self._conversation: list[ChatMessage] = []
        self._calls = self._failed = 0

    def _messages(self) -> list[ChatMessage]:
        self._conversation = self._conversation or super()._messages()
        return list(self._conversation)

    async def _perform(self, place: OpenEnvClient, text: str) -> float:
        """Make the calls of a turn, in order, until one ends the episode; a turn that calls nothing ends it."""
        earned, so_far = 0.0, self._conversation
        try:
            prose, calls = self._tools.read(text)
        except CallError as error:
            self._failed += 1
            so_far += [{"role": "assistant", "content": text}, {"role": "user", "content": f"error: {error}"}]
        else:
            self._ended = "" if calls else "policy"
            so_far.append(calling(prose.strip(), calls))
            for index, call in enumerate(calls):
                arguments = typed(call, self._tools.schemas.get(call.name, {}))
                earned += await self._take(place, call_action(call, arguments))
                result, failed = result_of(self._reply.observation)
                self._calls, self._failed = self._calls + 1, self._failed + failed
                so_far.append(answering(index, call, self._cut(self._tools.plain(result))))
                if self._ended:
                    break
        if not self._ended and not self._tools.has_room(so_far, self._options):
            self._ended = "context"
        return earned

    def _score(self, facts: Mapping[str, Any]) -> Score:
        score = super()._score(facts)
        counts = {"calls": self._calls, "failed_calls": self._failed}
        return replace(score, valid=self._calls > self._failed, info={**score.info, **counts})
