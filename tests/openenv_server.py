"""Two environments on a server made with the package openenv-core; run by a Python that has it, as a program.

``guess`` takes numbers as actions, ``counter`` calls of tools.  It prints the port, and ends with its standard input.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    number: int


class Hint(Observation):
    goal: str = "guess"
    text: str = ""


class Guessing(Environment):
    """Guess the seed."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()
        self._secret = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: object) -> Hint:
        self._secret, self._state = seed or 0, State(episode_id=episode_id, step_count=0)
        return Hint(text="?")

    def step(self, action: Guess, timeout_s: float | None = None, **_: object) -> Hint:
        self._state.step_count += 1
        right = action.number == self._secret
        return Hint(text="right" if right else "wrong", done=right, reward=1.0 if right else 0.0)

    @property
    def state(self) -> State:
        return self._state


class Counting(MCPEnvironment):
    """Count up to the seed with a tool; each call that comes closer is worth a half."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        mcp = FastMCP("counter")
        self._count = self._goal = 0

        @mcp.tool()
        def add(number: int) -> str:
            """Add a number to the count."""
            self._count += number
            return f"now {self._count}"

        @mcp.tool()
        def fail() -> str:
            """Go wrong."""
            raise ValueError("it went wrong")

        super().__init__(mcp)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: object) -> Hint:
        self._count, self._goal = 0, seed or 0
        return Hint(goal=f"count to {seed}", text="now 0")

    async def step_async(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        before = abs(self._goal - self._count)
        seen = await super().step_async(action, timeout_s)
        if isinstance(action, CallToolAction):
            seen.reward = 0.5 * (abs(self._goal - self._count) < before)
            seen.done = self._count == self._goal
        return seen

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        raise ValueError("this environment has tools")

    @property
    def state(self) -> State:
        return State()


APPS = {"guess": (Guessing, Guess, Hint), "counter": (Counting, CallToolAction, CallToolObservation)}


def main() -> None:
    """Serve one of them until standard input ends."""
    app = create_fastapi_app(*APPS[sys.argv[1]], max_concurrent_envs=4)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.05)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
