"""Chat completions as they travel: the body of a call, and the strict reading of what comes back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from levelhead.records import ChatMessage
from levelhead.tasks.endpoint.cache import Reply
from levelhead.tasks.strict_json import encodable, read_object

TOKENS_BESIDE = 100_000
"""Tokens that an endpoint may count beyond what it was sent and asked for: templates, hidden instructions, thoughts."""
_THOUGHTS = frozenset({"thinking", "reasoning"})
_TEXTS = frozenset({"text", "output_text"})
_YES_NO = ("yes", "no")


class NoCompletionError(ValueError):
    """A body that is no chat completion; the message says why."""


def write_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return messages as JSON can carry them: lone surrogates, which no encoding can, become U+FFFD."""
    return [{k: encodable(v) if isinstance(v, str) else v for k, v in message.items()} for message in messages]


def write_body(body: Mapping[str, Any]) -> bytes:
    """Return the bytes of a call."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def read_body(raw: bytes) -> dict[str, Any]:
    """Read a reply's body as one JSON object.

    Raises:
        NoCompletionError: It is empty, or none.
    """
    try:
        return read_object(raw)
    except ValueError as error:
        raise NoCompletionError("an empty body" if not raw.strip() else str(error)) from error


def first_object(value: object, name: str) -> dict[str, Any]:
    """Return the first object of a list that a reply must have.

    Raises:
        NoCompletionError: It is no list, or does not begin with an object.
    """
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        raise NoCompletionError(f"no {name}")
    return value[0]


def read_usage(data: Mapping[str, Any], name: str, read: str, written: str) -> tuple[object, object]:
    """Return what a body names as its tokens, unchecked; nothing where it has no such part."""
    usage = data.get(name)
    return (usage.get(read), usage.get(written)) if isinstance(usage, dict) else (None, None)


def read_reply(raw: bytes, sent: Mapping[str, Any], max_tokens: int | None = None) -> Reply:
    """Read a chat completion: the text of its first choice, whether that was cut off, and the tokens.

    Text is a string, or a list of parts whose texts are put together (parts that hold thoughts are left out).  A choice
    that is finished and has no content, or none but null, is an empty text.  Lone surrogates become U+FFFD.  Where the
    endpoint gives log-probabilities, the odds of yes against no are read as well (:func:`read_odds`).

    Args:
        raw: The body.
        sent: What was asked.
        max_tokens: Its completion budget; what it says itself unless given.

    Raises:
        NoCompletionError: It is anything else.
    """
    data = read_body(raw)
    choice = first_object(data.get("choices"), "choices")
    message, finish = choice.get("message"), choice.get("finish_reason")
    if not isinstance(message, dict):
        raise NoCompletionError("no message")
    text = encodable(_text(message.get("content"), finished=isinstance(finish, str)))
    read, written = read_usage(data, "usage", "prompt_tokens", "completion_tokens")
    asked = sum(len(str(message["content"])) for message in sent["messages"])
    budget = int(sent["max_tokens"]) if max_tokens is None else max_tokens
    reply = make_reply(text, read, written, sent, budget, asked, cut=finish == "length")
    logprobs = choice.get("logprobs")
    return replace(reply, yes=read_odds(_alternatives(logprobs))) if isinstance(logprobs, dict) else reply


def make_reply(
    text: str, read: object, written: object, sent: Mapping[str, Any], max_tokens: int, asked: int, *, cut: bool
) -> Reply:
    """Return a reply with the endpoint's tokens where it counts both sides in whole numbers that can be.

    They are not negative, no more read than bytes were sent and no more written than 16 times ``max_tokens``, each with
    100,000 to spare.  Else both are estimated as a token for four characters and marked so.

    Args:
        text: Of the reply.
        read: Tokens that were read, as the endpoint says.
        written: Tokens that were written, as it says.
        sent: The body of the call.
        max_tokens: Its completion budget.
        asked: Characters that were asked.
        cut: Whether the budget ran out.
    """
    tokens = counted_tokens(read, written, sent, max_tokens)
    if tokens is None:
        return Reply(text, asked // 4 + 1, len(text) // 4 + 1, counted=False, cut=cut)
    return Reply(text, *tokens, cut=cut)


def counted_tokens(read: object, written: object, sent: Mapping[str, Any], max_tokens: int) -> tuple[int, int] | None:
    """Return an endpoint's tokens where both numbers can be (see :func:`make_reply`); else ``None``."""
    read_n = _count(read, len(write_body(sent)) + TOKENS_BESIDE)
    written_n = _count(written, 16 * max_tokens + TOKENS_BESIDE)
    return None if read_n is None or written_n is None else (read_n, written_n)


def read_odds(tokens: Iterable[Sequence[tuple[object, object]]]) -> float | None:
    """Return the probability of yes against no where a reply last says one of them.

    Of the last position whose token reads "yes" or "no", the probabilities of all alternatives that read so are summed:
    P(yes) / (P(yes) + P(no)).  ``None`` where there is no such position, or its numbers are none.

    Args:
        tokens: By position, (text, log-probability) of the token that was drawn, first, and of its alternatives.
    """
    for alternatives in reversed(list(tokens)):
        if alternatives and _plain(alternatives[0][0]) in _YES_NO:
            mass = dict.fromkeys(_YES_NO, 0.0)
            for word, logprob in dict(alternatives).items():
                if _plain(word) in mass and isinstance(logprob, int | float) and logprob <= 0:
                    mass[_plain(word)] += math.exp(logprob)
            total = mass["yes"] + mass["no"]
            return mass["yes"] / total if 0 < total < math.inf else None
    return None


def _plain(word: object) -> str:
    return word.strip(" *_.\"'\n\u2581\u0120").casefold() if isinstance(word, str) else ""


def _alternatives(logprobs: Mapping[str, Any]) -> Iterator[list[tuple[object, object]]]:
    content = logprobs.get("content")
    for one in content if isinstance(content, list) else ():
        if isinstance(one, dict):
            top = one.get("top_logprobs")
            others = [other for other in top if isinstance(other, dict)] if isinstance(top, list) else []
            yield [(one.get("token"), one.get("logprob")), *((o.get("token"), o.get("logprob")) for o in others)]


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


def _count(value: object, most: int) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value <= most and value == int(value) else None
