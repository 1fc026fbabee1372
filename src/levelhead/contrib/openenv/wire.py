"""OpenEnv's messages: JSON objects over a web socket, one environment a connection.

A client sends ``{"type": "reset", "data": {...}}``, ``{"type": "step", "data": ACTION}``, ``{"type": "state"}`` or
``{"type": "close"}``.  A server answers ``{"type": "observation", "data": {"observation": {...}, "reward": R,
"done": D}}``, ``{"type": "state", "data": {...}}`` or ``{"type": "error", "data": {"message": ..., "code": ...}}``.
(The package ``openenv-core``, ``openenv/core/env_server/types.py``.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from levelhead.diagnosis.notice import printable
from levelhead.tasks.strict_json import encodable, read_object

Kind = Literal["reset", "step", "state", "close"]
ErrorCode = Literal[
    "INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR", "EXECUTION_ERROR", "CAPACITY_REACHED", "SESSION_ERROR"
]

MOST_REWARD = 1e9
"""Largest reward of one step, up or down, that is taken for one."""


class WireError(Exception):
    """The other side sent something that is not OpenEnv, or refused what was sent.

    Attributes:
        code: OpenEnv's error code, or ``PROTOCOL`` for a message that cannot be read.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's answer to ``reset`` or ``step``.

    Attributes:
        observation: The environment's own fields.
        reward: Of the last action; ``None`` where there is none.
        done: Whether the episode is over.
    """

    observation: Mapping[str, Any]
    reward: float | None
    done: bool


def request(kind: Kind, data: Mapping[str, Any] | None = None) -> str:
    """Return a client's message as JSON text."""
    return json.dumps({"type": kind} if data is None else {"type": kind, "data": dict(data)})


def answer(kind: Literal["observation", "state"], data: Mapping[str, Any]) -> str:
    """Return a server's message as JSON text."""
    return json.dumps({"type": kind, "data": dict(data)})


def refusal(code: ErrorCode, message: str) -> str:
    """Write a server's error message."""
    return json.dumps({"type": "error", "data": {"message": message, "code": code}})


def read_data(raw: str | bytes, kind: Literal["observation", "state"]) -> dict[str, Any]:
    """Read the data of a server's answer.

    Raises:
        WireError: The server refused, or the message is none of this kind.
    """
    try:
        message = read_object(raw)
    except ValueError as error:
        raise WireError("PROTOCOL", f"the server's answer is no OpenEnv message: {error}") from error
    data, sort = message.get("data"), message.get("type")
    if not isinstance(data, dict):
        raise WireError("PROTOCOL", f"the server's answer of type {_quote(sort)} has no data")
    if sort == "error":
        raise WireError(_quote(data.get("code", "UNKNOWN")), _quote(data.get("message", "no reason given"), 500))
    if sort != kind:
        raise WireError("PROTOCOL", f"expected a message of type {kind}, got {_quote(sort)!r}")
    return data


def read_reply(raw: str | bytes) -> Reply:
    """Read a server's answer to ``reset`` or ``step``.

    Raises:
        WireError: The server refused, or the message is no observation.
    """
    data = read_data(raw, "observation")
    observation, reward, done = data.get("observation"), data.get("reward"), data.get("done")
    if not isinstance(observation, dict):
        raise WireError("PROTOCOL", "the server's answer has no observation")
    if reward is not None and not (isinstance(reward, int | float) and -MOST_REWARD <= reward <= MOST_REWARD):
        raise WireError("PROTOCOL", f"the server's reward is no number up to {MOST_REWARD:g}: {_quote(reward)!r}")
    if done is not None and not isinstance(done, bool):
        raise WireError("PROTOCOL", f"the server's done is neither true nor false: {_quote(done)!r}")
    return Reply(observation, None if reward is None else float(reward), bool(done))


def written(value: object) -> str:
    """Return a field of an observation as text that can be tokenized."""
    try:
        return encodable(value if isinstance(value, str) else json.dumps(value))
    except RecursionError:
        return "(nested too deeply)"


def _quote(value: object, most: int = 50) -> str:
    """Return what a server wrote as one line that is safe to print; of what is no scalar, its kind."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MOST_REWARD:
        return "a huge number"
    return type(value).__name__ if isinstance(value, dict | list) else printable(value, most)
