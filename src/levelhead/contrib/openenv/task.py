"""Training on an OpenEnv server: each episode is a session, each turn a step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from levelhead.contrib.browser.view import SYSTEM_PROMPT
from levelhead.contrib.openenv.wire import Reply, WireError
from levelhead.errors import InputError
from levelhead.installation import install_command
from levelhead.recipe.environments import OpenEnv
from levelhead.records import Message, Prompt, Score
from levelhead.tasks.environment import EnvironmentTask, SeededEpisode
from levelhead.tasks.strict_json import encodable

if TYPE_CHECKING:
    from levelhead.contrib.openenv.client import OpenEnvClient


class OpenEnvTask(EnvironmentTask):
    """The tasks of an OpenEnv server, by default one that speaks as its BrowserGym environment does.

    Connections are kept between episodes.

    Args:
        section: The recipe's section.

    Raises:
        InputError: The package ``websockets`` is missing.
    """

    def __init__(self, section: OpenEnv) -> None:
        if find_spec("websockets") is None:
            raise InputError(f"the openenv task needs the package websockets: {install_command('browser')}")
        super().__init__(section, SYSTEM_PROMPT if section.system is None else section.system)
        self.section = section
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
        return OpenEnvEpisode(self, str(prompt.facts["task"]), int(prompt.facts["seed"]))

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

    def __init__(self, task: OpenEnvTask, name: str, seed: int) -> None:
        super().__init__(name, seed, task.section.step_limit, task.report)
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
        self._reply = await place.step({self._task.section.action: text.strip()})
        self._ended = "server" if self._reply.done else ""
        return self._reply.reward or 0.0

    def _messages(self) -> list[Message]:
        return [{"role": "system", "content": self._task.system}, {"role": "user", "content": self._shown()}]

    def _shown(self) -> str:
        """Write step and observation; the last field stands on lines of its own."""
        fields, limit = self._task.section.observation, self._task.section.observation_chars
        lines = [f"Step {self.step}"]
        for number, (field, word) in enumerate(fields.items(), 1):
            value = self._reply.observation.get(field)
            if value in (None, "", [], {}):
                continue
            text = _written(value)
            text = text if len(text) <= limit else text[: limit - 3] + "..."
            lines.append(f"{word}:{chr(10) if number == len(fields) else ' '}{text}")
        return "\n".join(lines)

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


def _written(value: object) -> str:
    """Return a field of an observation as text that can be tokenized."""
    try:
        return encodable(value if isinstance(value, str) else json.dumps(value))
    except RecursionError:
        return "(nested too deeply)"
