"""Three providers, one client: what goes out is what each documents, and what comes back reads alike."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from levelhead.recipe.judge import JudgeEndpoint
from levelhead.tasks.endpoint import ChatClient, EndpointError, Form, Reply, ReplyCache
from levelhead.tasks.metering import Usage

MESSAGES = ({"role": "system", "content": "Grade."}, {"role": "user", "content": "2+2=4"})
PLAIN = Form()
SCHEMA = {"type": "object", "properties": {"score": {"type": "number"}}, "additionalProperties": False}
ANTHROPIC = {
    "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Grade: 7"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 11, "output_tokens": 5},
}
GEMINI = {
    "candidates": [
        {"content": {"parts": [{"text": "hm", "thought": True}, {"text": "Grade: 7"}]}, "finishReason": "STOP"}
    ],
    "usageMetadata": {"promptTokenCount": 11, "candidatesTokenCount": 3, "thoughtsTokenCount": 2},
}
OPENAI = {
    "choices": [{"message": {"content": "Grade: 7"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 11, "completion_tokens": 5},
}


def ask(
    answer: dict[str, Any] | bytes, form: Form = PLAIN, cache: Path | None = None, **keys: Any
) -> tuple[Reply, httpx2.Request]:
    sent: list[httpx2.Request] = []

    async def reply(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(200, content=answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    async def run() -> Reply:
        section = JudgeEndpoint.model_validate(
            {"base_url": "http://x.test/v1", "model": "m", "patience_s": 0, "api_key_env": "TEST_KEY", **keys}
        )
        store = ReplyCache(cache) if cache else None
        async with ChatClient(section, Usage(), store, httpx2.MockTransport(reply)) as client:
            return await client.ask(MESSAGES, 0.0, "s", form=form)

    return asyncio.run(run()), sent[0]


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "secret")


@pytest.mark.parametrize(
    ("provider", "answer", "path", "header"),
    [
        ("openai", OPENAI, "/v1/chat/completions", ("authorization", "Bearer secret")),
        ("anthropic", ANTHROPIC, "/v1/messages", ("x-api-key", "secret")),
        ("gemini", GEMINI, "/v1/models/m:generateContent", ("x-goog-api-key", "secret")),
    ],
)
def test_each_provider_is_asked_at_its_place_with_the_key_where_it_wants_it(
    provider: str, answer: dict[str, Any], path: str, header: tuple[str, str]
) -> None:
    reply, request = ask(answer, provider=provider, extra_body={"top_k": 1})
    assert reply == Reply("Grade: 7", 11, 5)
    assert request.url.path == path
    assert request.headers[header[0]] == header[1]
    assert ("authorization" in request.headers) == (provider == "openai")
    assert json.loads(request.content)["top_k"] == 1


def test_anthropic_has_its_system_text_apart_and_a_version() -> None:
    _, request = ask(ANTHROPIC, provider="anthropic")
    body = json.loads(request.content)
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert body["system"] == "Grade."
    assert body["messages"] == [{"role": "user", "content": "2+2=4"}]
    assert "seed" not in body


def test_gemini_has_roles_and_a_configuration_of_its_own() -> None:
    _, request = ask(GEMINI, provider="gemini", max_tokens=9)
    body = json.loads(request.content)
    assert body["systemInstruction"] == {"parts": [{"text": "Grade."}]}
    assert body["contents"] == [{"role": "user", "parts": [{"text": "2+2=4"}]}]
    assert body["generationConfig"]["maxOutputTokens"] == 9


def test_a_schema_reaches_each_provider_in_its_own_way() -> None:
    form = Form(SCHEMA)
    _, request = ask(OPENAI, form)
    assert json.loads(request.content)["response_format"]["json_schema"]["schema"] == SCHEMA
    tool = {**ANTHROPIC, "content": [{"type": "tool_use", "name": "verdict", "input": {"score": 0.7}}]}
    reply, request = ask(tool, form, provider="anthropic")
    assert json.loads(request.content)["tool_choice"] == {"type": "tool", "name": "verdict"}
    assert json.loads(reply.text) == {"score": 0.7}
    _, request = ask(GEMINI, form, provider="gemini")
    config = json.loads(request.content)["generationConfig"]
    assert config["responseMimeType"] == "application/json"
    assert "additionalProperties" not in config["responseSchema"], "Gemini refuses the key"


@pytest.mark.parametrize(
    ("provider", "answer"),
    [
        ("anthropic", {**ANTHROPIC, "stop_reason": "max_tokens"}),
        ("gemini", {"candidates": [{**GEMINI["candidates"][0], "finishReason": "MAX_TOKENS"}]}),  # type: ignore[index]
    ],
)
def test_a_reply_that_ran_out_of_tokens_is_cut(provider: str, answer: dict[str, Any]) -> None:
    assert ask(answer, provider=provider)[0].cut


@pytest.mark.parametrize("provider", ["anthropic", "gemini"])
@pytest.mark.parametrize(
    "answer", [b"", b"<html>", b"[]", b"{}", b'{"content":[{"type":"image"}]}', b'{"candidates":[{}]}']
)
def test_what_is_no_reply_is_a_failed_attempt(provider: str, answer: bytes) -> None:
    with pytest.raises(EndpointError, match="no chat completion"):
        ask(answer, provider=provider)


def logprobs(*tokens: tuple[str, dict[str, float]]) -> dict[str, Any]:
    content = []
    for token, chances in tokens:
        top = [{"token": word, "logprob": math.log(chance)} for word, chance in chances.items()]
        content.append({"token": token, "logprob": math.log(chances.get(token, 0.5)), "top_logprobs": top})
    return {"content": content}


def test_the_odds_of_yes_are_read_at_the_last_yes_or_no_and_kept_in_the_cache(tmp_path: Path) -> None:
    said = logprobs(
        ("no", {"no": 0.9}),
        ("Sound", {"Sound": 1.0}),
        (" Yes", {" Yes": 0.6, "yes": 0.1, " No": 0.1}),
        (".", {".": 1.0}),
    )
    answer = {**OPENAI, "choices": [{"message": {"content": "no\nSound\nYes"}, "logprobs": said}]}
    reply, request = ask(answer, Form(odds=True), tmp_path / "c.sqlite")
    assert json.loads(request.content)["top_logprobs"] == 5
    assert reply.yes == pytest.approx(0.7 / 0.8)
    cache = ReplyCache(tmp_path / "c.sqlite")
    (key,) = cache._db.execute("SELECT key FROM replies").fetchone()
    assert cache.get(key) == reply


def test_gemini_s_odds_are_read_too() -> None:
    result = {
        "chosenCandidates": [{"token": "Yes", "logProbability": math.log(0.3)}],
        "topCandidates": [
            {"candidates": [{"token": t, "logProbability": math.log(p)} for t, p in (("Yes", 0.3), ("No", 0.1))]}
        ],
    }
    answer = {"candidates": [{**GEMINI["candidates"][0], "logprobsResult": result}]}  # type: ignore[index]
    assert ask(answer, Form(odds=True), provider="gemini")[0].yes == pytest.approx(0.75)


@pytest.mark.parametrize("said", [None, 3, {"content": 3}, {"content": [3, {"token": "yes", "logprob": "x"}]}])
def test_odds_that_are_none_are_left_out(said: object) -> None:
    answer = {**OPENAI, "choices": [{"message": {"content": "Yes"}, "logprobs": said}]}
    assert ask(answer, Form(odds=True))[0].yes is None


def test_the_first_reply_that_is_kept_is_everybody_s(tmp_path: Path) -> None:
    one, other = ReplyCache(tmp_path / "c.sqlite"), ReplyCache(tmp_path / "c.sqlite")
    assert one.put("k", Reply("first", 1, 1)).text == "first"
    assert other.put("k", Reply("second", 1, 1)).text == "first"


def test_processes_that_write_one_cache_at_once_all_go_by_the_same_replies(tmp_path: Path) -> None:
    code = (
        "import sys; from levelhead.tasks.endpoint import Reply, ReplyCache\n"
        "cache = ReplyCache(sys.argv[1])\n"
        "print([cache.put(str(n), Reply(sys.argv[2], 1, 1)).text for n in range(20)])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "c.sqlite")]
    running = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in "ab"]
    said = [one.communicate(timeout=60)[0] for one in running]
    assert [one.returncode for one in running] == [0, 0]
    assert said[0] == said[1]
    cache = ReplyCache(tmp_path / "c.sqlite")
    assert all((reply := cache.get(str(n))) is not None and reply.text in "ab" for n in range(20))
