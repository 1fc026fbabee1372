"""Our client against a server made with the package openenv-core itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip(
    "openenv.core.env_server.http_server", reason="needs the package openenv-core", exc_type=ImportError
)

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from levelhead.contrib.openenv import OpenEnvTask
from levelhead.contrib.openenv.client import OpenEnvClient
from levelhead.contrib.openenv.wire import WireError
from levelhead.recipe.environments import OpenEnv


class Guess(Action):
    number: int


class Hint(Observation):
    goal: str = "guess"
    text: str = ""


class Guessing(Environment):  # type: ignore[misc,type-arg]
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


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    app = create_fastapi_app(Guessing, Guess, Hint, max_concurrent_envs=4)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.05)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


async def test_our_client_plays_on_openenvs_own_server(url: str) -> None:
    client = OpenEnvClient(url)
    reply = await client.reset(seed=7, episode_id="mine")
    assert (reply.observation["text"], reply.done) == ("?", False)
    assert not (await client.step({"number": 3})).done
    state = await client.state()
    assert (state["episode_id"], state["step_count"]) == ("mine", 1)
    last = await client.step({"number": 7})
    assert (last.reward, last.done) == (1.0, True)
    with pytest.raises(WireError) as caught:
        await client.step({"numbr": 7})
    assert caught.value.code == "VALIDATION_ERROR"
    assert (await client.reset(seed=1)).observation["text"] == "?"
    await client.close()


async def test_episodes_of_a_task_run_on_openenvs_own_server(url: str) -> None:
    task = OpenEnvTask(OpenEnv(kind="openenv", url=url, action="number", sessions=3))

    async def play(seed: int) -> float:
        episode = task.episode(task.prompt("", seed))
        for guess in range(10):
            assert (await episode.observe())[-1]["content"].startswith(f"Step {guess + 1}\nGoal: guess\nPage:\n")
            step = await episode.act(str(guess))
            if step.score is not None:
                return step.score.total
        raise AssertionError("the episode did not end")

    assert await asyncio.gather(*(play(seed) for seed in range(5))) == [1.0] * 5
    await task.close()
