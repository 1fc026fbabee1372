"""An OpenEnv server for the browser task: ``ws://host:port/ws``, one page a connection.

It speaks as OpenEnv's own BrowserGym environment does (action ``action_str``; observation ``goal``, ``text``, ``url``,
``error``, ``last_action_error``; ``reset`` takes ``seed`` and ``task_name``), so that its clients can use either.
``GET /health`` answers for container managers.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from levelhead.contrib.browser.baselines import unbroken
from levelhead.contrib.browser.episode import BrowserEpisode
from levelhead.contrib.browser.pages import page_names, page_url
from levelhead.contrib.browser.task import BrowserTask
from levelhead.contrib.openenv.wire import ErrorCode, answer, refusal
from levelhead.tasks.base import EpisodeLostError

MAX_MESSAGE = 64 * 1024
"""Bytes of a client's message."""


class RefusedError(Exception):
    """A request that cannot be met; the client is told and may go on."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Session:
    """The environment of one connection.

    Args:
        task: Gives the pages; a client may ask for any MiniWoB++ page, and gets the task's by weight where it does not.
        number: Of the connection; it varies the seeds of a client that gives none.
    """

    def __init__(self, task: BrowserTask, number: int) -> None:
        self._task = task
        self._draw = random.Random(f"session/{number}")
        self._episode: BrowserEpisode | None = None
        self._live = False
        self._id = ""
        self._steps = 0
        self._total = 0.0

    async def handle(self, raw: str | bytes) -> str | None:
        """Answer a message; ``None`` where the client has said goodbye."""
        try:
            message = json.loads(raw)
            if not isinstance(message, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            return refusal("INVALID_JSON", f"Invalid JSON: {error}")
        data = message.get("data", {})
        try:
            if not isinstance(data, dict):
                raise RefusedError("VALIDATION_ERROR", "data must be an object")
            match message.get("type"):
                case "reset":
                    return await self._reset(data)
                case "step":
                    return await self._step(data)
                case "state":
                    return answer("state", self._state())
                case "close":
                    return None
                case other:
                    raise RefusedError("UNKNOWN_TYPE", f"Unknown message type: {str(other)[:50]}")
        except RefusedError as error:
            return refusal(error.code, str(error))
        except EpisodeLostError as error:
            self._live = False
            return refusal("EXECUTION_ERROR", f"the page was lost, reset to go on: {error}")

    async def close(self) -> None:
        """Close the episode, which gives its page back."""
        if self._episode is not None:
            await self._episode.close()

    async def _reset(self, data: Mapping[str, Any]) -> str:
        page, seed = data.get("task_name"), data.get("seed")
        if seed is None:
            seed = self._draw.randrange(2**31)
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise RefusedError("VALIDATION_ERROR", "seed must be a whole number from 0 up")
        if page is None:
            weights = self._task.section.weights
            (page,) = random.Random(seed).choices(list(weights), list(weights.values()))
        if page not in page_names():
            raise RefusedError("VALIDATION_ERROR", f"there is no task {str(page)[:50]!r}")
        await self.close()
        prompt = self._task.prompt(str(page), seed)
        episode = await unbroken(lambda: self._task.open(prompt))
        self._episode, self._live = episode, True
        self._id = str(data.get("episode_id") or f"{page}-{seed}")[:255]
        self._steps, self._total = 0, 0.0
        return self._observation(None, done=False)

    async def _step(self, data: Mapping[str, Any]) -> str:
        action = data.get("action_str")
        if not isinstance(action, str) or set(data) - {"action_str", "metadata"}:
            raise RefusedError("VALIDATION_ERROR", 'an action is {"action_str": "click(1)"}')
        if self._episode is None or not self._live:
            raise RefusedError("EXECUTION_ERROR", "no episode is under way; reset first")
        step = await self._episode.act(action)
        self._steps += 1
        reward = step.score.total if step.score is not None else 0.0
        self._total += reward
        self._live = not step.done
        return self._observation(reward, done=step.done)

    def _observation(self, reward: float | None, *, done: bool) -> str:
        assert self._episode is not None  # noqa: S101 - both callers have made sure
        episode = self._episode
        text = episode.page_text
        observation = {
            "text": text,
            "url": page_url(episode.name),
            "screenshot": None,
            "goal": episode.view.goal,
            "axtree_txt": text,
            "pruned_html": "",
            "error": episode.error,
            "last_action_error": bool(episode.error),
        }
        return answer("observation", {"observation": observation, "reward": reward, "done": done})

    def _state(self) -> dict[str, Any]:
        episode = self._episode
        return {
            "episode_id": self._id or None,
            "step_count": self._steps,
            "benchmark": "miniwob",
            "task_name": episode.name if episode else "",
            "task_id": None,
            "goal": episode.view.goal if episode else "",
            "current_url": page_url(episode.name) if episode else "",
            "max_steps": episode.step_limit if episode else None,
            "cum_reward": self._total,
        }


class BrowserServer:
    """Serves the browser task until it is closed.

    Use as ``async with BrowserServer(task, "127.0.0.1", 8000) as server``; port 0 takes a free one.

    Args:
        task: Its ``concurrency`` is the number of connections at once; one more is told ``CAPACITY_REACHED``.
        host: Address to listen on.  Whoever can reach it can use the pages; there is no other check.
        port: Port to listen on.
        idle: Seconds after which a silent connection is closed.
    """

    def __init__(self, task: BrowserTask, host: str, port: int, idle: float = 600.0) -> None:
        self._task = task
        self._host = host
        self._port = port
        self._idle = idle
        self._numbers = itertools.count()
        self._open = 0
        self._server: Server | None = None

    @property
    def port(self) -> int:
        """The port it listens on."""
        if self._server is None:
            raise RuntimeError("the server has not been started")
        return int(next(iter(self._server.sockets)).getsockname()[1])

    async def __aenter__(self) -> BrowserServer:
        """Start to listen on the address."""
        self._server = await serve(
            self._connection,
            self._host,
            self._port,
            process_request=_health,
            # Web pages in somebody's browser send an origin; programs do not.
            origins=[None],
            max_size=MAX_MESSAGE,
            compression=None,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections and the browser."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        await self._task.close()

    async def _connection(self, socket: ServerConnection) -> None:
        if self._open >= self._task.concurrency:
            await socket.send(refusal("CAPACITY_REACHED", f"all {self._task.concurrency} sessions are taken"))
            return
        self._open += 1
        session = Session(self._task, next(self._numbers))
        try:
            while True:
                raw = await asyncio.wait_for(socket.recv(), self._idle)
                reply = await session.handle(raw)
                if reply is None:
                    break
                await socket.send(reply)
        except (ConnectionClosed, TimeoutError):
            return
        finally:
            self._open -= 1
            await session.close()


def _health(_: ServerConnection, request: Request) -> Response | None:
    path = request.path.partition("?")[0]
    if path == "/ws":
        return None
    status, body = (HTTPStatus.OK, b'{"status": "healthy"}') if path == "/health" else (HTTPStatus.NOT_FOUND, b"{}")
    headers = Headers({"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"})
    return Response(status.value, status.phrase, headers, body)
