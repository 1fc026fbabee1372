"""Replies of a chat endpoint: sound ones with verdicts of all kinds, whose values, bytes, status and headers change."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from typing import Any

from fuzzlib.mutate import mutate, warp

_VERDICTS = (
    "Grade: 7", "Sound.\nGrade: 10", 'It says "Grade: 10".\nGrade: 2', "Grade: 100", "Grade: -3", "Grade: 7/10",
    "**Grade: 8**", "Grade: seven", "Grade: 1e308", "Grade: nan", "Answer: B", "Yes", "<think>Grade: 10</think>\n",
    "Grade: " + "9" * 5000, "Grade:" + " " * 20_000 + "4", "\n" * 20_000 + "Grade: 4", "Grade: 4" * 3000, "",
    "\x1b]0;owned\x07Grade: 9", "Gr\u0430de: 9", "Grade: \u0669", "\u202eGrade: 9", "```\nGrade: 9\n```",
)  # fmt: skip
_HEADERS = (
    ("retry-after", ("0", "-1", "1e400", "nan", "99999999999", "Wed, 21 Oct 2015 07:28:00 GMT", "\x1b[2J", "9" * 5000)),
    ("content-type", ("application/json", "text/html; charset=utf-\x9b31m", "", "x" * 5000)),
    ("content-encoding", ("gzip", "deflate", "br", "identity", "gzip, gzip", "\x1b[2J")),
    ("location", ("http://[::1", "javascript:alert(1)", "//evil", "\u202e", "")),
    ("set-cookie", ("a=b",)),
)
_STATUS = (200, 200, 200, 200, 201, 204, 206, 301, 302, 400, 401, 403, 404, 408, 413, 418, 429, 500, 503, 599)


def reply(rng: random.Random) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return the status, headers and body of what an endpoint sends."""
    data: dict[str, Any] = {
        "id": "x",
        "object": "chat.completion",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": _content(rng)}, "finish_reason": _finish(rng)}
        ],
        "usage": {"prompt_tokens": 40, "completion_tokens": 9, "total_tokens": 49},
    }
    tree = warp(data, rng, rng.choice((0.0, 0.0, 0.05, 0.2)))
    body = json.dumps(tree, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    if rng.random() < 0.6:
        body = mutate(body, rng)
    headers = [(n, rng.choice(values)) for n, values in _HEADERS if rng.random() < 0.15]
    if rng.random() < 0.1:
        packed = gzip.compress if rng.random() < 0.5 else zlib.compress
        body = packed(body if rng.random() < 0.8 else bytes(3 << 20))
        headers.append(("content-encoding", rng.choice(("gzip", "deflate"))))
    return rng.choice(_STATUS), [(n.encode(), v.encode("utf-8", "surrogatepass")) for n, v in headers], body


def _content(rng: random.Random) -> Any:
    text = rng.choice(_VERDICTS)
    if rng.random() < 0.3:
        text = mutate(text.encode(), rng).decode("utf-8", "replace")
    if rng.random() < 0.2:
        kinds = ("text", "output_text", "thinking", "reasoning", "image_url", "", 3)
        return [{"type": rng.choice(kinds), "text": text} for _ in range(rng.randrange(4))]
    return text


def _finish(rng: random.Random) -> Any:
    return rng.choice(("stop", "stop", "length", None, 3, "content_filter"))
