"""Training on an OpenEnv server: each episode is a session, each turn a step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from levelhead.contrib.browser.view import SYSTEM_PROMPT
from levelhead.contrib.openenv.tools import call_action, list_tools, result_of
from levelhead.contrib.openenv.wire import Reply, WireError, written
from levelhead.errors import InputError
from levelhead.installation import install_command
from levelhead.recipe.environments import OpenEnv
from levelhead.records import Message, Prompt, Score
from levelhead.tasks.base import EpisodeLostError, Step
from levelhead.tasks.environment import EnvironmentTask
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


class OpenEnvEpisode:
    """One session on the server, from the first look until it is done or closed."""

    def __init__(self, task: OpenEnvTask, prompt: Prompt) -> None:
        self.step = 1
        self.reward = 0.0
        self._task = task
        self._name, self._seed = str(prompt.facts["task"]), int(prompt.facts["seed"])
        self._client: OpenEnvClient | None = None
        self._reply = Reply({}, None, done=False)
        self._over = False

    async def observe(self) -> list[Message]:
        """Return the messages of this turn.

        Raises:
            EpisodeLostError: The server refused or has gone.
            InputError: The server has never been there.
        """
        if self._over:
            raise RuntimeError("the episode is over")
        if self._client is None:
            self._client = await self._task.lend()
            parameters: dict[str, Any] = {"seed": self._seed}
            if self._name:
                parameters["task_name"] = self._name
            self._reply = await self._try(self._client.reset(**parameters))
        return [{"role": "system", "content": self._task.system}, {"role": "user", "content": self._shown()}]

    async def act(self, text: str) -> Step:
        """Send what the policy wrote as the action.

        Raises:
            EpisodeLostError: The server refused or has gone.
        """
        return await self._turned(await self._take({self._task.section.action: text.strip()}))

    async def _take(self, action: Mapping[str, Any]) -> float:
        """Take an action; returns its reward."""
        if self._client is None:
            raise RuntimeError("observe comes before act")
        self._reply = await self._try(self._client.step(action))
        return self._reply.reward or 0.0

    async def _turned(self, reward: float, *, over: bool = False) -> Step:
        """End a turn that earned a reward, and the episode where it is over."""
        self.reward += reward
        taken, self.step = self.step, self.step + 1
        if not (over or self._reply.done or taken >= self._task.section.step_limit):
            return Step(done=False, reward=reward)
        await self.close()
        return Step(done=True, score=self._score(taken), reward=reward)

    async def close(self) -> None:
        """End the episode and give its connection back to the task."""
        self._over = True
        await self._let_go(fit=True)

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

    async def _try(self, answer: Awaitable[Reply]) -> Reply:
        from levelhead.contrib.openenv.client import UnreachableError

        try:
            reply = await answer
        except (UnreachableError, WireError) as error:
            self._over = True
            if isinstance(error, UnreachableError) and not self._task.reached:
                await self._let_go(fit=False)
                raise InputError(f"{error}; start the server, or correct tasks[].url") from error
            code = "server-lost" if isinstance(error, UnreachableError) else "server-refused"
            self._task.report(code, f"{self._name or 'episode'}, seed {self._seed}, step {self.step}: {error}")
            await self._let_go(fit=False)
            raise EpisodeLostError(str(error)) from error
        self._task.reached = True
        return reply

    async def _let_go(self, *, fit: bool) -> None:
        client, self._client = self._client, None
        if client is not None:
            await self._task.give_back(client, fit=fit)

    def _score(self, steps: int) -> Score:
        success = float(self.reward > self._task.section.success_above)
        return Score(
            total=self.reward,
            parts={"success": success, "return": self.reward},
            valid=not self._reply.observation.get("last_action_error", False),
            info={
                "task": self._name,
                "seed": self._seed,
                "steps": steps,
                "ended": "server" if self._reply.done else "step_limit",
            },
        )


class ToolCallEpisode(OpenEnvEpisode):
    """One session whose actions are calls of tools; the conversation grows by a turn each, and ends without a call.

    The score's ``info`` holds the number of ``calls`` and ``failed_calls``.
    """

    def __init__(self, task: OpenEnvTask, tools: CallReader, prompt: Prompt) -> None:
        super().__init__(task, prompt)
        self._tools, self._options = tools, prompt.chat
        self._messages: list[Message] = []
        self._calls = self._failed = 0

    async def observe(self) -> list[Message]:
        """Return the conversation so far; its beginning is what ``reset`` showed.

        Raises:
            EpisodeLostError: The server refused or has gone.
            InputError: The server has never been there.
        """
        shown = await super().observe()
        self._messages = self._messages or shown
        return list(self._messages)

    async def act(self, text: str) -> Step:
        """Make the calls of a turn, in order, until one ends the episode; a turn that calls nothing ends it.

        Raises:
            EpisodeLostError: The server refused or has gone.
        """
        try:
            prose, calls = self._tools.read(text)
        except CallError as error:
            self._failed += 1
            self._messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"error: {error}"}]
            return await self._turned(0.0, over=not self._has_room())
        self._messages.append(calling(prose.strip(), calls))
        earned = 0.0
        for index, call in enumerate(calls):
            arguments = typed(call, self._tools.schemas.get(call.name, {}))
            earned += await self._take(call_action(call, arguments))
            result, failed = result_of(self._reply.observation)
            self._calls, self._failed = self._calls + 1, self._failed + failed
            self._messages.append(answering(index, call, self._cut(self._tools.plain(result))))
            if self._reply.done:
                break
        return await self._turned(earned, over=not calls or not self._has_room())

    def _has_room(self) -> bool:
        return self._tools.has_room(self._messages, self._options)

    def _score(self, steps: int) -> Score:
        score = super()._score(steps)
        counts = {"calls": self._calls, "failed_calls": self._failed}
        return replace(score, valid=self._calls > self._failed, info={**score.info, **counts})
