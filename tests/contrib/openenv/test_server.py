"""Our OpenEnv server in front of a real browser, and our client, or a bare socket, in front of it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from levelhead.contrib.browser.leftovers import Process
from levelhead.contrib.browser.task import BrowserTask
from levelhead.contrib.openenv import OpenEnvTask
from levelhead.contrib.openenv.client import OpenEnvClient
from levelhead.contrib.openenv.server import BrowserServer
from levelhead.contrib.openenv.wire import WireError
from levelhead.recipe.environments import Browser, OpenEnv

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(require_browser: None) -> AsyncIterator[BrowserServer]:
    section = Browser(kind="browser", tasks=["click-test", "enter-text"], items=4, pages=2, spare_pages=0)
    async with BrowserServer(BrowserTask(section), "127.0.0.1", 0) as made:
        yield made


def address(server: BrowserServer) -> str:
    return f"http://127.0.0.1:{server.port}"


async def ask(socket: Any, message: object) -> dict[str, Any]:
    await socket.send(message if isinstance(message, str) else json.dumps(message))
    reply: dict[str, Any] = json.loads(await socket.recv())
    return reply


async def test_client_and_server_play_an_episode(server: BrowserServer) -> None:
    client = OpenEnvClient(address(server))
    first = await client.reset(seed=1, task_name="enter-text", episode_id="mine")
    assert first.observation["goal"] == 'Enter "Bernardine" into the text field and press Submit.'
    assert first.observation["text"] == first.observation["axtree_txt"] == '[1] textbox [2] button "Submit"'
    assert (first.reward, first.done) == (None, False)
    wrong = await client.step({"action_str": "clik(1)", "metadata": {}})
    assert wrong.observation["last_action_error"]
    assert wrong.observation["error"].startswith("unknown action clik")
    await client.step({"action_str": "fill(1, 'Bernardine')"})
    state = await client.state()
    assert (state["episode_id"], state["step_count"], state["task_name"]) == ("mine", 2, "enter-text")
    assert (state["max_steps"], state["cum_reward"]) == (4, 0.0)
    last = await client.step({"action_str": "click(2)"})
    assert (last.reward, last.done) == (1.0, True)
    assert (await client.state())["cum_reward"] == 1.0
    with pytest.raises(WireError, match="reset first"):
        await client.step({"action_str": "click(2)"})
    await client.close()


async def test_the_policy_reads_the_same_through_the_server_as_from_the_page(server: BrowserServer) -> None:
    local = server._task
    remote = OpenEnvTask(OpenEnv(kind="openenv", url=address(server), tasks=["enter-text"], items=4))
    episodes = [task.episode(task.prompt("enter-text", 3)) for task in (local, remote)]
    for action in ("click(9)", "fill(1, 'x')", None):
        seen = [await episode.observe() for episode in episodes]
        assert seen[0] == seen[1]
        if action is not None:
            for episode in episodes:
                await episode.act(action)
    for episode in episodes:
        await episode.close()
    await remote.close()


async def test_a_seed_chooses_the_page_where_the_client_does_not(server: BrowserServer) -> None:
    client = OpenEnvClient(address(server))
    goals = [(await client.reset(seed=seed)).observation["goal"] for seed in (0, 1, 2, 3, 0)]
    assert goals[0] == goals[4]
    assert any("Enter" in goal for goal in goals)
    assert any("Click" in goal for goal in goals)
    await client.reset()
    await client.close()


async def test_bad_messages_are_refused_and_the_session_goes_on(server: BrowserServer) -> None:
    bad = [
        ("{", "INVALID_JSON"),
        ("[" * 60_000, "INVALID_JSON"),
        ('{"type": ' * 7_000, "INVALID_JSON"),
        ("[1]", "INVALID_JSON"),
        ({"type": "dance"}, "UNKNOWN_TYPE"),
        ({"type": "step", "data": {"action_str": "click(1)"}}, "EXECUTION_ERROR"),
        ({"type": "step", "data": {"action": "click(1)"}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"action_str": "click(1)", "more": 1}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": 3}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"seed": -1}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"seed": "x"}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"task_name": "../../etc/passwd"}}, "VALIDATION_ERROR"),
    ]
    async with connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None) as socket:
        for message, code in bad:
            reply = await ask(socket, message)
            assert (reply["type"], reply["data"]["code"]) == ("error", code), message
        assert (await ask(socket, {"type": "reset"}))["type"] == "observation"


async def test_sessions_are_bounded_and_free_again_when_a_client_leaves(server: BrowserServer) -> None:
    clients = [OpenEnvClient(address(server)) for _ in range(3)]
    for client in clients[:2]:
        await client.reset(seed=1)
    with pytest.raises(WireError, match="all 2 sessions are taken"):
        await clients[2].reset(seed=1)
    await clients[2].close()
    await clients[0].close()
    for _ in range(100):
        try:
            await clients[2].reset(seed=1)
            break
        except WireError:
            await clients[2].close()
            await asyncio.sleep(0.05)
    assert not (await clients[1].step({"action_str": "noop()"})).done
    for client in clients[1:]:
        await client.close()


async def test_web_pages_of_a_persons_browser_cannot_connect(server: BrowserServer) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        async with connect(f"ws://127.0.0.1:{server.port}/ws", origin="https://example.org", proxy=None):
            pass


async def test_health_is_told_and_other_paths_are_not_found(server: BrowserServer) -> None:
    def get(path: str) -> tuple[int, str]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(address(server) + path, timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""

    assert await asyncio.to_thread(get, "/health") == (200, '{"status": "healthy"}')
    assert (await asyncio.to_thread(get, "/elsewhere"))[0] == 404


async def test_a_killed_browser_costs_its_sessions_an_error_and_a_reset(server: BrowserServer) -> None:
    client = OpenEnvClient(address(server))
    await client.reset(seed=1)
    host = server._task.pool().host
    assert host is not None
    host.record.browser.kill()
    with pytest.raises(WireError, match="the page was lost, reset to go on"):
        await client.step({"action_str": "click(1)"})
    with pytest.raises(WireError, match="reset first"):
        await client.step({"action_str": "click(1)"})
    assert (await client.reset(seed=1)).observation["goal"]
    await client.close()


async def test_the_command_serves_until_it_is_interrupted(require_browser: None) -> None:
    code = "import sys; from levelhead.cli.serve import serve; serve(sys.argv[1:], standalone_mode=False)"
    arguments = ["browser", "--port", "0", "--task", "click-test", "--sessions", "1", "--json"]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    assert said["tasks"] == ["click-test"]

    async def play() -> bool:
        client = OpenEnvClient(said["url"])
        await client.reset(seed=3)
        reply = await client.step({"action_str": "click(1)"})
        await client.close()
        return reply.done

    assert await play()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert Process.find(process.pid) is None
