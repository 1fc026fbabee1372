"""An OpenAI-compatible endpoint in this process, behind which episodes answer: one model name an episode.

What is posted is held until the episode's policy has answered.  Texts alone pass through it: tokens are made by the
codec and the sampler, as in every other episode.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from levelhead.contrib.verifiers.harness import NO_ROOM
from levelhead.records import ChatMessage
from levelhead.tasks.tool_formats import Call

MAX_BODY = 64 * 1024 * 1024
"""Bytes of a request; conversations may be long."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request that waits for the policy.

    Attributes:
        messages: The conversation, as chat templates take it.
        pictures: Whether it shows anything but text, which is left out.
        reply: What is answered.
    """

    messages: list[ChatMessage]
    pictures: bool
    reply: asyncio.Future[web.Response]

    def answer(self, text: str, calls: Sequence[tuple[str, Call]], *, ended: bool) -> None:
        """Answer with a text and calls of tools, each with its id; ``ended`` says whether the policy came to an end."""
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [
                {
                    "id": id_,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
                }
                for id_, call in calls
            ]
        finish = "tool_calls" if calls else "stop" if ended else "length"
        choice = {"index": 0, "message": message, "finish_reason": finish}
        self._settle(
            {"id": secrets.token_hex(8), "object": "chat.completion", "created": int(time.time()), "model": "policy"}
            | {"choices": [choice]}
        )

    def refuse(self) -> None:
        """Answer that the conversation has no room in the policy's context."""
        self._settle({"error": {"message": NO_ROOM, "type": "invalid_request_error", "code": NO_ROOM}}, status=400)

    def _settle(self, body: Mapping[str, Any], status: int = 200) -> None:
        if not self.reply.done():
            self.reply.set_result(web.json_response(body, status=status))


class Endpoint:
    """Listens on this machine alone, under a path that nobody can guess."""

    def __init__(self) -> None:
        self._inboxes: dict[str, asyncio.Queue[Question]] = {}
        self._runner: web.AppRunner | None = None
        self._secret = secrets.token_urlsafe(16)

    async def start(self) -> str:
        """Listen on a free port; return the base URL."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post(f"/{self._secret}/v1/chat/completions", self._completion)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/{self._secret}/v1"

    async def close(self) -> None:
        """Stop listening and free the port."""
        if self._runner is not None:
            await self._runner.cleanup()

    def open(self) -> tuple[str, asyncio.Queue[Question]]:
        """Return a fresh model name, and the requests that name it."""
        name = secrets.token_hex(8)
        return name, self._inboxes.setdefault(name, asyncio.Queue())

    def shut(self, name: str) -> None:
        """Refuse requests that name a model from now on."""
        self._inboxes.pop(name, None)

    async def _completion(self, request: web.Request) -> web.Response:
        body = await request.json()
        inbox = self._inboxes.get(str(body.get("model")))
        if inbox is None:
            return web.json_response({"error": {"message": "this episode is over"}}, status=404)
        read = [_read(message) for message in body["messages"]]
        reply: asyncio.Future[web.Response] = asyncio.get_running_loop().create_future()
        inbox.put_nowait(Question([message for message, _ in read], any(picture for _, picture in read), reply))
        return await reply


def _read(wire: Mapping[str, Any]) -> tuple[ChatMessage, bool]:
    """Return a message as chat templates take it, and whether it shows anything but text."""
    message = {key: wire[key] for key in ("role", "content", "name", "tool_call_id") if wire.get(key) is not None}
    parts = message.setdefault("content", "")
    pictures = isinstance(parts, list) and any(part.get("type") != "text" for part in parts)
    if isinstance(parts, list):
        message["content"] = "\n".join(str(part["text"]) for part in parts if part.get("type") == "text")
    if wire.get("tool_calls"):
        message["tool_calls"] = [
            call | {"function": call["function"] | {"arguments": json.loads(call["function"]["arguments"])}}
            for call in wire["tool_calls"]
        ]
    return message, pictures
