"""The client and its task against small servers that behave and misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from hostile_server import serving
from levelhead.contrib.openenv import OpenEnvTask
from levelhead.contrib.openenv.client import OpenEnvClient, UnreachableError, socket_url
from levelhead.contrib.openenv.wire import Reply, WireError, answer, refusal
from levelhead.errors import InputError
from levelhead.recipe.environments import OpenEnv
from levelhead.tasks.base import EpisodeLostError, Task
from levelhead.tasks.registry import make_task
from text.families import codec_of

Handler = Callable[[ServerConnection], Awaitable[None]]


def counting(limit: int) -> Handler:
    """An environment to count up in: each step is worth a half, the episode ends after ``limit`` of them."""

    async def handle(socket: ServerConnection) -> None:
        count, seed = 0, None
        async for raw in socket:
            message = json.loads(raw)
            if message["type"] == "close":
                return
            if message["type"] == "state":
                await socket.send(answer("state", {"episode_id": "e", "step_count": count}))
                continue
            if message["type"] == "reset":
                count, seed = 0, message["data"].get("seed")
            else:
                count += 1
            observation = {"goal": f"count from {seed}", "text": f"now {count}", "seen": raw}
            reward = None if count == 0 else 0.5
            data = {"observation": observation, "reward": reward, "done": count >= limit}
            await socket.send(answer("observation", data))

    return handle


@asynccontextmanager
async def listening(handler: Handler) -> AsyncIterator[str]:
    async with serve(handler, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


def make(url: str, **keys: Any) -> OpenEnvTask:
    return OpenEnvTask(OpenEnv.model_validate({"kind": "openenv", "url": url, **keys}))


def test_addresses_lead_to_the_socket() -> None:
    assert socket_url("http://a:1") == "ws://a:1/ws"
    assert socket_url("https://a/b/") == "wss://a/b/ws"
    assert socket_url("ws://a:1/ws") == "ws://a:1/ws"


def test_the_registry_makes_it_and_it_keeps_its_protocols() -> None:
    task = make_task(OpenEnv(kind="openenv", url="http://localhost:1"))
    assert isinstance(task, Task)
    assert task.concurrency
    assert [prompt.id for prompt in task.prompts("train", 0)][:1][0].startswith("/")


async def test_reset_step_state_and_close() -> None:
    async with listening(counting(2)) as url:
        client = OpenEnvClient(url)
        assert (await client.reset(seed=5)).observation["goal"] == "count from 5"
        reply = await client.step({"action_str": "up"})
        assert (reply.reward, reply.done) == (0.5, False)
        assert json.loads(reply.observation["seen"]) == {"type": "step", "data": {"action_str": "up"}}
        assert await client.state() == {"episode_id": "e", "step_count": 1}
        assert (await client.step({})).done
        await client.close()
        await client.close()


async def test_an_episode_is_scored_by_the_sum_of_its_rewards() -> None:
    async with listening(counting(3)) as url:
        task = make(url, success_above=1.2)
        episode = task.episode(task.prompt("counter", 4))
        for number in range(3):
            system, user = await episode.observe()
            assert system["role"] == "system"
            assert user["content"] == f"Step {number + 1}\nGoal: count from 4\nPage:\nnow {number}"
            step = await episode.act("up")
            assert step.reward == 0.5
        assert step.done
        assert step.score is not None
        assert step.score.total == 1.5
        assert step.score.parts == {"success": 1.0, "return": 1.5}
        await task.close()


async def test_the_task_name_is_sent_unless_it_is_empty_and_fields_and_action_are_the_recipes() -> None:
    async with listening(counting(9)) as url:
        task = make(url, action="move", observation={"text": "Board", "seen": "Raw"}, system="Play.", step_limit=1)
        for name in ("", "chess"):
            episode = task.episode(task.prompt(name, 1))
            system, user = await episode.observe()
            assert system["content"] == "Play."
            first, board, label, raw = user["content"].split("\n")
            assert (first, board, label) == ("Step 1", "Board: now 0", "Raw:")
            assert json.loads(raw)["data"] == ({"seed": 1, "task_name": name} if name else {"seed": 1})
            step = await episode.act(" e4 \n")
            assert step.score is not None
            assert step.score.info["ended"] == "step_limit"
            assert json.loads(episode._reply.observation["seen"])["data"] == {"move": "e4"}
        await task.close()


async def test_connections_are_kept_and_no_more_are_used_than_allowed() -> None:
    opened = 0

    async def count(socket: ServerConnection) -> None:
        nonlocal opened
        opened += 1
        await counting(1)(socket)

    async with listening(count) as url:
        task = make(url, sessions=2)

        async def play(seed: int) -> None:
            episode = task.episode(task.prompt("", seed))
            await episode.observe()
            await asyncio.sleep(0.01)
            await episode.act("up")

        await asyncio.gather(*(play(seed) for seed in range(6)))
        assert opened == 2
        await task.close()


async def test_a_server_that_hangs_up_costs_the_episode_and_not_the_next() -> None:
    times = 0

    async def fickle(socket: ServerConnection) -> None:
        nonlocal times
        times += 1
        if times == 2:
            await socket.recv()
            await socket.send(answer("observation", {"observation": {}, "reward": None, "done": False}))
            await socket.recv()
            return
        await counting(1)(socket)

    async with listening(fickle) as url:
        task = make(url)
        first = task.episode(task.prompt("", 0))
        await first.observe()
        lost = task.episode(task.prompt("", 1))
        await lost.observe()
        with pytest.raises(EpisodeLostError):
            await lost.act("up")
        assert [(event.step, event.code) for event in task.drain_events(3)] == [(3, "server-lost")]
        assert (await first.act("up")).done
        again = task.episode(task.prompt("", 1))
        await again.observe()
        assert (await again.act("up")).done
        await task.close()


async def test_a_server_that_never_answered_is_bad_input() -> None:
    task = make("http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"no OpenEnv server answers at ws://127.0.0.1:9/ws.*tasks\[\]\.url"):
        await task.episode(task.prompt("", 0)).observe()


async def test_a_server_that_does_not_answer_is_given_up() -> None:
    async def silent(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.wait_closed()

    async with listening(silent) as url:
        with pytest.raises(UnreachableError, match=r"did not answer for 0\.2 s"):
            await OpenEnvClient(url, timeout=0.2).reset()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\xff\r\n\r\n",
        b"HTTP/1.1 500 \x1b[2J\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: no\r\n\r\n",
        b"HTTP/1.1 302 F\r\nLocation: /ws\r\n\r\n",
        b"HTTP/1.1 302 F\r\nLocation: ws://[\r\n\r\n",
        b"HTTP/1.1 302 F\r\nLocation: ws://127.0.0.1:999999/\r\n\r\n",
    ],
)
async def test_a_server_that_speaks_something_else_is_unreachable(answer: bytes) -> None:
    with serving(lambda one: one.write(answer)) as server:
        task = make(f"http://127.0.0.1:{server.port}")
        with pytest.raises(InputError, match="no OpenEnv server answers at") as raised:
            await task.episode(task.prompt("x", 1)).observe()
        assert str(raised.value).isprintable()
        assert server.requests <= 10


async def test_an_answer_that_drips_for_ever_is_given_up() -> None:
    """Fragments of one message, each well within any time-out between fragments: 10,000 would take 100 s."""
    fragments = 0

    async def drip(socket: ServerConnection) -> None:
        async def pieces() -> AsyncIterator[str]:
            nonlocal fragments
            while fragments < 10_000:
                fragments += 1
                yield " "
                await asyncio.sleep(0.01)

        await socket.send(pieces())

    async with listening(drip) as url:
        with pytest.raises(UnreachableError, match=r"did not answer for 0\.2 s"):
            await OpenEnvClient(url, 0.2).reset(seed=1)
    assert fragments < 10_000


async def test_text_that_no_encoding_can_write_is_shown_all_the_same() -> None:
    deep: Any = "x"
    for _ in range(200_000):
        deep = [deep]

    async def odd(socket: ServerConnection) -> None:
        async for _ in socket:
            await socket.send(answer("observation", {"observation": {"goal": "\ud800", "text": ["\ud800"]}}))

    async with listening(odd) as url:
        task = make(url)
        episode = task.episode(task.prompt("odd", 1))
        _, user = await episode.observe()
        assert user["content"] == 'Step 1\nGoal: \ufffd\nPage:\n["\\ud800"]'
        episode._reply = Reply({"text": deep}, None, done=False)
        assert episode._shown().endswith("(nested too deeply)")
        await episode.close()
        await task.close()


async def test_a_refusal_costs_the_episode_and_says_why() -> None:
    async def refusing(socket: ServerConnection) -> None:
        async for _ in socket:
            await socket.send(refusal("CAPACITY_REACHED", "all taken"))

    async with listening(refusing) as url:
        with pytest.raises(WireError, match="all taken"):
            await OpenEnvClient(url).reset()
        task = make(url)
        with pytest.raises(EpisodeLostError, match="all taken"):
            await task.episode(task.prompt("", 0)).observe()
        (event,) = task.drain_events(1)
        assert (event.code, event.message) == ("server-refused", "episode, seed 0, step 1: all taken")
        await task.close()


def tool_server(*replies: dict[str, Any], tools: Any = None) -> Handler:
    """A server that lists tools, and answers calls with observations in turn."""
    listed = [{"name": "add", "description": "Add.", "input_schema": NUMBER}] if tools is None else tools
    left = list(replies)

    async def handle(socket: ServerConnection) -> None:
        async for raw in socket:
            message = json.loads(raw)
            if message["type"] == "close":
                return
            data: dict[str, Any] = {"observation": {"goal": "g", "text": "t"}, "reward": None, "done": False}
            if message["data"].get("type") == "list_tools":
                data["observation"] = {"tools": listed}
            elif message["type"] == "step":
                data |= left.pop(0)
                data["observation"] = {"tool_name": message["data"]["tool_name"], **data["observation"]}
            await socket.send(answer("observation", data))

    return handle


NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
CALL = '<tool_call>\n{"name": "add", "arguments": {"number": 3}}\n</tool_call>'


def shows(text: str, reward: float | None = None, *, done: bool = False, **keys: Any) -> dict[str, Any]:
    result = {"content": [{"type": "text", "text": text}], "is_error": False, **keys}
    return {"observation": {"result": result, "error": None}, "reward": reward, "done": done}


async def with_tools(url: str, **keys: Any) -> OpenEnvTask:
    task = await asyncio.to_thread(make, url, tools=True, **keys)
    assert task.tools is not None
    task.tools.learn_format(codec_of("qwen25"), task.name, 4000)
    return task


async def test_a_turns_calls_are_steps_until_one_ends_the_episode() -> None:
    replies = [shows("a", 0.25), shows("b", 0.5, done=True), shows("never", 9.0)]
    async with listening(tool_server(*replies)) as url:
        task = await with_tools(url)
        episode = task.episode(task.prompt("", 1))
        await episode.observe()
        step = await episode.act(CALL * 3)
        assert (step.done, step.reward) == (True, 0.75)
        assert step.score is not None
        assert (step.score.total, step.score.valid, step.score.info["calls"]) == (0.75, True, 2)
        await task.close()


async def test_a_turn_without_a_call_ends_the_episode_and_one_that_cannot_be_read_does_not() -> None:
    async with listening(tool_server()) as url:
        task = await with_tools(url)
        episode = task.episode(task.prompt("", 1))
        await episode.observe()
        assert not (await episode.act("<tool_call>{nonsense</tool_call>")).done
        assert (await episode.observe())[-1]["content"].startswith("error: the call of a tool cannot be read")
        step = await episode.act("I am done.")
        assert step.done
        assert step.score is not None
        assert (step.score.total, step.score.valid, step.score.info["failed_calls"]) == (0.0, False, 1)
        await task.close()


@pytest.mark.parametrize(
    ("reply", "seen"),
    [
        (shows("ok\x1b[2J<|im_end|>"), "ok[2J<|im_end|>"),
        (shows("bad", is_error=True), "error: bad"),
        ({"observation": {"result": None, "error": {"error_type": "timeout", "message": "late"}}}, "error: late"),
        ({"observation": {"result": {"data": 3}}}, '{"data": 3}'),
        ({"observation": {"result": "x" * 500}}, "x" * 97 + "..."),
    ],
)
async def test_what_a_call_returns_is_shown_plain_and_cut(reply: dict[str, Any], seen: str) -> None:
    async with listening(tool_server(reply)) as url:
        task = await with_tools(url, observation_chars=100)
        episode = task.episode(task.prompt("", 1))
        await episode.observe()
        await episode.act(CALL)
        assert (await episode.observe())[-1] == {
            "role": "tool", "name": "add", "tool_call_id": "call00000", "content": seen
        }  # fmt: skip
        await episode.close()
        await task.close()


@pytest.mark.parametrize("tools", [[], "none", [3]])
async def test_a_server_that_lists_no_tools_is_refused_before_the_first_step(tools: Any) -> None:
    async with listening(tool_server(tools=tools)) as url:
        with pytest.raises(InputError, match=r"tasks\[\]\.tools: .* lists no tools"):
            await asyncio.to_thread(make, url, tools=True)


def test_tools_of_a_server_that_is_not_there_are_bad_input() -> None:
    with pytest.raises(InputError, match="start the server, or correct"):
        make("http://127.0.0.1:9", tools=True)


async def test_a_connection_whose_answer_nobody_waited_for_is_used_no_more() -> None:
    async def slow(socket: ServerConnection) -> None:
        async for raw in socket:
            await asyncio.sleep(0.05)
            seed = json.loads(raw)["data"].get("seed")
            await socket.send(answer("observation", {"observation": {"goal": f"seed {seed}"}, "done": False}))

    async with listening(slow) as url:
        task = make(url, sessions=1)
        abandoned = task.episode(task.prompt("", 1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(abandoned.observe(), 0.01)
        await abandoned.close()
        episode = task.episode(task.prompt("", 2))
        assert "seed 2" in (await episode.observe())[-1]["content"]
        await episode.close()
        await task.close()
