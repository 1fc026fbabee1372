"""What a server sends is checked against what was asked for; what does not fit is the engine's fault, by name."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import httpx2
import pytest

from levelhead.recipe.generator import Vllm
from levelhead.rollout.generators.vllm.client import BYTES_A_TOKEN, MOST_BYTES, Client, RefusedError, ServerLostError
from levelhead.rollout.generators.vllm.routes import COMPLETIONS, GENERATE, LEAST_LOGP, ReplyError, read_reply

STOP = 2


def body(route: str, ids: list[Any], logps: list[Any] | None = None, **keys: Any) -> dict[str, Any]:
    logps = [-0.5] * len(ids) if logps is None else logps
    rows = [{"token_id": i, "logprob": value} for i, value in zip(ids, logps, strict=False)]
    logprobs = {"content": rows} if route == GENERATE else {"token_logprobs": logps}
    return {"choices": [{"token_ids": ids, "logprobs": logprobs, "finish_reason": "stop", **keys}]}


def versions(*ends: Any) -> dict[str, Any]:
    return {"weight_versions": [{"version": f"v{n}", "end": end} for n, end in enumerate(ends)]}


@pytest.mark.parametrize("route", [GENERATE, COMPLETIONS])
def test_a_sound_reply_is_read(route: str) -> None:
    reply = read_reply(route, body(route, [5, 7, STOP], [-1, -0.5, 1e-6], **versions(1, 3)), {STOP}, 3, 10)
    assert reply.token_ids == (5, 7, STOP)
    assert reply.logprobs == (-1, -0.5, 0.0)
    assert reply.stopped
    assert [(one.label, one.end) for one in reply.stretches] == [("v0", 1), ("v1", 3)]
    least = read_reply(route, body(route, [5], [float("-inf")]), {STOP}, 3, 10)
    assert least.logprobs == (LEAST_LOGP,)


@pytest.mark.parametrize("route", [GENERATE, COMPLETIONS])
@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (lambda r: body(r, [5, 6, 7, 8]), "4 tokens, and 3 were asked for"),
        (lambda r: body(r, [5, STOP, 7]), "behind a stop token, at 1"),
        (lambda r: body(r, [STOP, STOP]), "behind a stop token, at 0"),
        (lambda r: body(r, [5.0, 6]), "where a whole number should"),
        (lambda r: body(r, ["5", 6]), "where a whole number should"),
        (lambda r: body(r, [True]), "where a whole number should"),
        (lambda r: body(r, [None]), "where a whole number should"),
        (lambda r: body(r, [10]), "none of the 10 of the vocabulary"),
        (lambda r: body(r, [-1]), "none of the 10 of the vocabulary"),
        (lambda r: body(r, [10**400]), "a number of many digits"),
        (lambda r: body(r, [5], ["-0.5"]), "no log-probability"),
        (lambda r: body(r, [5], [float("nan")]), "no log-probability"),
        (lambda r: body(r, [5], [0.5]), "no log-probability"),
        (lambda r: body(r, [5], [10**400]), "no log-probability"),
        (lambda r: body(r, [5], [True]), "no log-probability"),
        (lambda r: body(r, [5, 6], **versions(1)), "versions"),
        (lambda r: body(r, [5, 6], **versions(1, 3)), "versions"),
        (lambda r: body(r, [5, 6], **versions(2, 1)), "versions"),
        (lambda r: body(r, [5, 6], **versions(0, 2)), "versions"),
        (lambda r: body(r, [5, 6], **versions(1, 1, 2)), "versions"),
        (lambda r: body(r, [5, 6], **versions(2.0)), "where a whole number should"),
        (lambda r: body(r, [5, 6], weight_versions=[{"version": ["v"], "end": 2}]), "versions"),
        (lambda r: body(r, [5, 6], weight_versions=7), "no reply"),
        (lambda r: {"choices": body(r, [5])["choices"] * 2}, "no reply"),
        (lambda r: {"choices": []}, "no reply"),
        (lambda r: {"choices": [7]}, "no reply"),
        (lambda r: [], "no reply"),
        (lambda r: None, "no reply"),
        (lambda r: body(r, []), "no token"),
    ],
)
def test_a_reply_that_does_not_fit_the_request_is_refused(route: str, reply: Any, why: str) -> None:
    with pytest.raises(ReplyError, match=why):
        read_reply(route, reply(route), {STOP}, 3, 10)


def call(answer: httpx2.Response, monkeypatch: pytest.MonkeyPatch, *, tokens: int = 0) -> Any:
    monkeypatch.setenv("ENGINE_KEY", "sk-engine-0123456789")
    section = Vllm(kind="vllm", urls=["http://engine.test"], shared="/tmp", api_key_env="ENGINE_KEY")
    client = Client("http://engine.test", section, httpx2.MockTransport(lambda _: answer))

    async def ask() -> Any:
        try:
            return await client.sample("/v1/completions", {}, 30, tokens)
        finally:
            await client.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("packed", [False, True])
def test_a_reply_is_read_up_to_a_size(monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    content = json.dumps({"text": "x" * (MOST_BYTES + 100)}).encode()
    headers = {"content-encoding": "gzip"} if packed else {}
    answer = httpx2.Response(200, content=gzip.compress(content) if packed else content, headers=headers)
    with pytest.raises(ServerLostError, match=f"more than {MOST_BYTES} bytes"):
        call(answer, monkeypatch)
    answer = httpx2.Response(200, content=gzip.compress(content) if packed else content, headers=headers)
    assert call(answer, monkeypatch, tokens=1 + 200 // BYTES_A_TOKEN)["text"]


@pytest.mark.parametrize("content", [b"[" * 200_000, b'{"a":' * 100_000, b"9" * 5000, b"\xff\xfe", b"{", b""])
def test_a_reply_that_is_no_json_is_none(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    assert call(httpx2.Response(200, content=content), monkeypatch) is None


def test_the_key_is_not_in_what_a_server_says_of_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for said in ("sk-engine-0123456789", "sk-engine%2D0123456789", "sk-engine-\n0123456789", "[" * 100_000):
        with pytest.raises(RefusedError) as caught:
            call(httpx2.Response(400, json={"message": f"bad key {said}"}), monkeypatch)
        assert "0123456789" not in str(caught.value)
