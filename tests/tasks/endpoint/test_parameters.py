"""Keys of a call that an endpoint does not take are left out, once and for all calls; budgets count every attempt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from levelhead.recipe.endpoint import Endpoint
from levelhead.tasks.endpoint import BudgetError, ChatClient, EndpointError, Pace
from levelhead.tasks.metering import Usage

ASKED = [{"role": "user", "content": "?"}]
GOOD: dict[str, Any] = {
    "openai": {"choices": [{"message": {"content": "fine"}}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
    "anthropic": {"content": [{"type": "text", "text": "fine"}], "usage": {"input_tokens": 3, "output_tokens": 2}},
    "gemini": {
        "candidates": [{"content": {"parts": [{"text": "fine"}]}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 2},
    },
}


class Server:
    """Answers as a function of the body says; ``None`` is a good reply."""

    def __init__(self, answer: Callable[[dict[str, Any]], tuple[int, Any] | None] = lambda body: None) -> None:
        self.answer = answer
        self.requests: list[httpx2.Request] = []
        self.bodies: list[dict[str, Any]] = []

    def ask(self, usage: Usage, calls: int = 1, pace: Pace | None = None, asked: Any = ASKED, **keys: Any) -> list[str]:
        section = Endpoint.model_validate(
            {"base_url": "http://e.test/v1", "model": "m", "patience_s": 0.2, "backoff_s": 0.001, **keys}
        )

        def reply(request: httpx2.Request) -> httpx2.Response:
            self.requests.append(request)
            self.bodies.append(json.loads(request.content))
            status, data = self.answer(self.bodies[-1]) or (200, GOOD[section.provider])
            return httpx2.Response(status, json=data)

        async def ask() -> list[str]:
            async with ChatClient(section, usage, None, httpx2.MockTransport(reply), "tasks[].judge", pace) as client:
                return [(await client.ask(asked, 0.0, str(i))).text for i in range(calls)]

        return asyncio.run(ask())


def o3(body: dict[str, Any]) -> tuple[int, Any] | None:
    if "max_tokens" in body:
        message = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
        return 400, {"error": {"message": message, "param": "max_tokens", "code": "unsupported_parameter"}}
    if body.get("temperature", 1) != 1:
        message = (
            "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) is supported."
        )
        return 400, {"error": {"message": message, "param": "temperature", "code": "unsupported_value"}}
    return None


def mistral(body: dict[str, Any]) -> tuple[int, Any] | None:
    detail = [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]
    return (422, {"object": "error", "message": {"detail": detail}}) if "seed" in body else None


def gemini(body: dict[str, Any]) -> tuple[int, Any] | None:
    message = "Invalid JSON payload received. Unknown name \"seed\" at 'generation_config': Cannot find field."
    return (400, {"error": {"code": 400, "message": message}}) if "seed" in body["generationConfig"] else None


def claude(body: dict[str, Any]) -> tuple[int, Any] | None:
    message = "`temperature` may only be set to 1 when thinking is enabled."
    return (400, {"type": "error", "error": {"message": message}}) if "temperature" in body else None


@pytest.mark.parametrize(
    ("provider", "answer", "gone", "requests"),
    [
        ("openai", o3, {"max_tokens", "temperature"}, 5),
        ("openai", mistral, {"seed"}, 4),
        ("gemini", gemini, {"seed"}, 4),
        ("anthropic", claude, {"temperature"}, 4),
    ],
)
def test_the_client_learns_what_to_leave_out_once_and_says_so(
    provider: str, answer: Callable[[dict[str, Any]], tuple[int, Any] | None], gone: set[str], requests: int
) -> None:
    server, usage = Server(answer), Usage()
    pace = Pace(Endpoint(base_url="http://e.test/v1", model="m"))
    assert server.ask(usage, 3, pace, provider=provider) == ["fine"] * 3
    assert len(server.bodies) == requests
    last = server.bodies[-1]
    assert not gone & {*last, *last.get("generationConfig", {})}
    if "max_tokens" in gone:
        assert last["max_completion_tokens"] == 1024
    news = usage.take_news()
    assert len(news) == len(gone)
    assert all(any(key in line for line in news) for key in gone)
    assert server.ask(usage, 1, pace, provider=provider) == ["fine"]
    assert len(server.bodies) == requests + 1
    assert usage.take_news() == []


def key(body: dict[str, Any], name: str) -> bool:
    return name in body and body[name] != 1


@pytest.mark.parametrize(
    ("name", "status", "data"),
    [
        ("temperature", 400, {"error": {"message": "invalid temperature: only 1 is allowed for this model"}}),
        ("temperature", 400, {"error": {"message": "'temperature': this model only accepts the default value of 1."}}),
        ("temperature", 400, {"type": "error", "error": {"message": "`temperature` is deprecated for this model."}}),
        ("seed", 400, {"error": {"message": "property 'seed' is unsupported, did you mean 'stop'?"}}),
        ("seed", 400, {"message": "[{'type': 'extra_forbidden', 'loc': ('body', 'seed')}]", "param": None}),
        ("seed", 422, "Failed to deserialize the JSON body into the target type: unknown field `seed`"),
        ("seed", 501, {"error": {"message": "seed is not supported"}}),
        ("seed", 400, {"error": {"message": "\u53c2\u6570 seed \u4e0d\u652f\u6301", "param": "seed", "code": "1210"}}),
    ],
)
def test_it_learns_from_the_words_of_other_endpoints(name: str, status: int, data: Any) -> None:
    server, usage = Server(lambda body: (status, data) if key(body, name) else None), Usage()
    assert server.ask(usage, 2, Pace(Endpoint(base_url="http://e.test/v1", model="m"))) == ["fine"] * 2
    assert len(server.bodies) == 3
    assert [name in line for line in usage.take_news()] == [True]


@pytest.mark.parametrize(
    "message",
    [
        "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
        "System role not supported",
        "Developer instruction is not enabled for models/gemma-3-27b-it",
        "Conversation roles must alternate user/assistant/user/assistant/...",
    ],
)
def test_where_there_is_no_system_role_its_text_begins_the_users(message: str) -> None:
    asked = [{"role": "system", "content": "Grade."}, {"role": "user", "content": "An answer"}]

    def answer(body: dict[str, Any]) -> tuple[int, Any] | None:
        return (400, {"error": {"message": message}}) if body["messages"][0]["role"] == "system" else None

    server, usage = Server(answer), Usage()
    assert server.ask(usage, 2, Pace(Endpoint(base_url="http://e.test/v1", model="m")), asked=asked) == ["fine"] * 2
    assert len(server.bodies) == 3
    assert server.bodies[-1]["messages"] == [{"role": "user", "content": "Grade.\n\nAn answer"}]
    assert usage.take_news() == ["http://e.test/v1 does not take system messages; their text begins the user's"]


@pytest.mark.parametrize(
    ("message", "keys", "fix"),
    [
        ("'top_logprobs' is not supported with this model", {"extra_body": {"top_logprobs": 5}}, "top_logprobs: null"),
        ("'temperature' is not supported", {"extra_body": {"temperature": 0.3}}, "temperature: null"),
        ("max_tokens is too large: 4096", {}, "check tasks"),
        ("the model m is not supported", {}, "check tasks"),
    ],
)
def test_a_key_that_is_the_recipes_own_is_its_own_to_change(message: str, keys: dict[str, Any], fix: str) -> None:
    server, usage = Server(lambda _: (400, {"error": {"message": message}})), Usage()
    with pytest.raises(EndpointError) as caught:
        server.ask(usage, **keys)
    assert caught.value.cause == "refusal"
    assert fix in caught.value.fix
    assert len(server.bodies) == 1


def test_null_takes_a_key_away_and_objects_are_merged() -> None:
    server = Server()
    extra = {"max_tokens": None, "temperature": None, "seed": None, "max_completion_tokens": 9, "nothing": None}
    assert server.ask(Usage(), extra_body=extra) == ["fine"]
    assert set(server.bodies[0]) == {"model", "messages", "max_completion_tokens"}
    assert server.ask(Usage(), provider="gemini", extra_body={"generationConfig": {"seed": None, "topK": 3}}) == [
        "fine"
    ]
    assert server.bodies[1]["generationConfig"] == {"temperature": 0.0, "maxOutputTokens": 1024, "topK": 3}


def test_the_version_of_the_api_is_sent_without_a_key_as_well() -> None:
    server = Server()
    server.ask(Usage(), provider="anthropic")
    assert server.requests[0].headers["anthropic-version"] == "2023-06-01"
    assert "x-api-key" not in server.requests[0].headers


EMPTY: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}


@pytest.mark.parametrize(
    "answer",
    [(200, EMPTY), (200, {}), (503, {}), (429, {}), (400, {"error": {"message": "unknown seed", "param": "seed"}})],
)
def test_every_attempt_counts_against_the_budget_of_calls(answer: tuple[int, Any]) -> None:
    server, usage = Server(lambda _: answer), Usage()
    with pytest.raises(EndpointError) as caught:
        server.ask(usage, max_calls=3, patience_s=5)
    assert len(server.bodies) == (3 if answer[0] != 400 else 2)
    assert isinstance(caught.value, BudgetError) == (answer[0] != 400)


def test_every_reply_with_tokens_counts_against_the_budgets_of_tokens_and_money() -> None:
    for keys in ({"max_total_tokens": 30}, {"max_cost": 30e-6, "prompt_price": 1.0, "completion_price": 1.0}):
        server, usage = Server(lambda _: (200, EMPTY)), Usage()
        with pytest.raises(BudgetError):
            server.ask(usage, patience_s=5, **keys)
        assert len(server.bodies) == 3
        assert (usage.prompt_tokens, usage.completion_tokens) == (21, 15)


def test_an_endpoint_that_cannot_be_reached_costs_no_budget() -> None:
    usage = Usage()
    section = Endpoint(base_url="http://127.0.0.1:9/v1", model="m", patience_s=0.1, backoff_s=0.01, max_calls=1)

    async def ask() -> None:
        async with ChatClient(section, usage) as client:
            await client.ask(ASKED, 0.0, "0")

    with pytest.raises(EndpointError) as caught:
        asyncio.run(ask())
    assert caught.value.cause == "outage"
    assert usage.attempts == 0
