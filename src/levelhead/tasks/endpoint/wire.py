"""Chat completions as they travel: the body of a call, and the strict reading of what comes back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from levelhead.records import Message
from levelhead.tasks.endpoint.cache import Reply
from levelhead.tasks.strict_json import encodable, read_object

TOKENS_BESIDE = 100_000
"""Tokens that an endpoint may count beyond what it was sent and asked for: templates, hidden instructions, thoughts."""
_THOUGHTS = frozenset({"thinking", "reasoning"})
_TEXTS = frozenset({"text", "output_text"})


class NoCompletionError(ValueError):
    """A body that is no chat completion; the message says why."""


def write_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as JSON can carry them: lone surrogates, which no encoding can, become U+FFFD."""
    return [{k: encodable(v) if isinstance(v, str) else v for k, v in message.items()} for message in messages]


def write_body(body: Mapping[str, Any]) -> bytes:
    """Return the bytes of a call."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def read_reply(raw: bytes, sent: Mapping[str, Any]) -> Reply:
    """Read a chat completion: the text of its first choice, whether that was cut off, and the tokens.

    Text is a string, or a list of parts whose texts are put together (parts that hold thoughts are left out).  A choice
    that is finished and has no content, or none but null, is an empty text.  Lone surrogates become U+FFFD.

    Tokens are the endpoint's where it counts both sides in whole numbers that can be: not negative, no more read than
    bytes were sent and no more written than 16 times ``max_tokens``, each with 100,000 to spare.  Else both are
    estimated as a token for four characters and marked so.

    Args:
        raw: The body.
        sent: What was asked.

    Raises:
        NoCompletionError: It is anything else.
    """
    try:
        data = read_object(raw)
    except ValueError as error:
        raise NoCompletionError("an empty body" if not raw.strip() else str(error)) from error
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise NoCompletionError("no choices")
    choice = choices[0]
    message, finish = choice.get("message"), choice.get("finish_reason")
    if not isinstance(message, dict):
        raise NoCompletionError("no message")
    text = encodable(_text(message.get("content"), finished=isinstance(finish, str)))
    read, written = _tokens(data.get("usage"), sent)
    if read is None or written is None:
        asked = sum(len(str(message["content"])) for message in sent["messages"])
        return Reply(text, asked // 4 + 1, len(text) // 4 + 1, counted=False, cut=finish == "length")
    return Reply(text, read, written, cut=finish == "length")


def _text(content: object, *, finished: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None and finished:
        return ""
    if not isinstance(content, list):
        raise NoCompletionError("no content" if content is None else f"content that is a {type(content).__name__}")
    texts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind in _THOUGHTS:
            continue
        text = part.get("text") if isinstance(kind, str) and kind in _TEXTS else None
        if not isinstance(text, str):
            raise NoCompletionError("content with a part that is no text")
        texts.append(text)
    return "".join(texts)


def _tokens(usage: object, sent: Mapping[str, Any]) -> tuple[int | None, int | None]:
    if not isinstance(usage, dict):
        return None, None
    most_read = len(write_body(sent)) + TOKENS_BESIDE
    most_written = 16 * int(sent["max_tokens"]) + TOKENS_BESIDE
    return _count(usage.get("prompt_tokens"), most_read), _count(usage.get("completion_tokens"), most_written)


def _count(value: object, most: int) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value <= most and value == int(value) else None
