"""How providers write the same call and the same reply: three dialects over one client.

A dialect is the shape of two JSON documents and a header.  Waiting, retrying, budgets, caches, caps on size and the
handling of keys are the client's and the same for all (``docs/experiments/judges.md`` says why no library is used).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.parse import quote

from levelhead import extensions
from levelhead.recipe.endpoint import Endpoint
from levelhead.records import ChatMessage
from levelhead.tasks.endpoint.cache import Reply
from levelhead.tasks.endpoint.wire import (
    NoCompletionError,
    first_object,
    make_reply,
    read_body,
    read_odds,
    read_reply,
    read_usage,
    write_messages,
)
from levelhead.tasks.strict_json import encodable


@dataclass(frozen=True, slots=True)
class Form:
    """What a reply is asked to be, beyond text.

    Attributes:
        schema: JSON schema that the provider holds the reply to; none unless given.
        odds: Whether log-probabilities are asked for, where the provider has them.
    """

    schema: Mapping[str, Any] | None = None
    odds: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One question to a model.

    Attributes:
        messages: Of the conversation so far.
        temperature: Of sampling.
        seed: Of sampling, where one is sent.
        form: What the reply is asked to be.
    """

    messages: Sequence[ChatMessage]
    temperature: float
    seed: int | None = None
    form: Form = Form()


class Dialect(Protocol):
    """One provider's way of writing calls and replies."""

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers of a call, which carry the key where there is one."""
        ...

    def path(self, section: Endpoint) -> str:
        """Return where calls go, after the base URL."""
        ...

    def body(self, section: Endpoint, call: Call) -> dict[str, Any]:
        """Return a call's body, without the recipe's ``extra_body``."""
        ...

    def read(self, raw: bytes, sent: Mapping[str, Any], max_tokens: int) -> Reply:
        """Read a reply from the body of a response.

        Raises:
            NoCompletionError: It is no reply.
        """
        ...

    def usage(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """Return the tokens read and written that a reply's body names, whatever else is wrong with it."""
        ...


class OpenAi:
    """Chat completions: OpenAI, and what most servers offer (vLLM, SGLang, Ollama, llama.cpp)."""

    def headers(self, key: str) -> dict[str, str]:
        """Return the key as a bearer token."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def path(self, section: Endpoint) -> str:  # noqa: ARG002
        """Return the path of chat completions."""
        return "chat/completions"

    def body(self, section: Endpoint, call: Call) -> dict[str, Any]:
        """Return the body of a chat completion."""
        body: dict[str, Any] = {
            "model": section.model,
            "messages": write_messages(call.messages),
            "temperature": call.temperature,
            "max_tokens": section.max_tokens,
        }
        if call.seed is not None:
            body["seed"] = call.seed
        if call.form.schema is not None:
            schema = {"name": "verdict", "schema": dict(call.form.schema), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if call.form.odds:
            body |= {"logprobs": True, "top_logprobs": 5}
        return body

    def read(self, raw: bytes, sent: Mapping[str, Any], max_tokens: int) -> Reply:
        """Read a reply from a chat completion's body."""
        return read_reply(raw, sent, max_tokens)

    def usage(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """Return the tokens read and written that a reply's body names."""
        return read_usage(data, "usage", "prompt_tokens", "completion_tokens")


class Anthropic:
    """Anthropic's messages API.  It takes no seed and gives no log-probabilities; a schema is a tool it must use."""

    def headers(self, key: str) -> dict[str, str]:
        """Return the key and the version of the API."""
        return {"anthropic-version": "2023-06-01"} | ({"x-api-key": key} if key else {})

    def path(self, section: Endpoint) -> str:  # noqa: ARG002
        """Return the path of messages."""
        return "messages"

    def body(self, section: Endpoint, call: Call) -> dict[str, Any]:
        """Return the body of a message; system messages stand apart from the others, and temperatures end at 1."""
        messages = write_messages(call.messages)
        system = "\n\n".join(str(one["content"]) for one in messages if one["role"] == "system")
        body: dict[str, Any] = {
            "model": section.model,
            "max_tokens": section.max_tokens,
            "temperature": min(call.temperature, 1.0),
            "messages": [one for one in messages if one["role"] != "system"],
        }
        if system:
            body["system"] = system
        if call.form.schema is not None:
            body["tools"] = [{"name": "verdict", "input_schema": dict(call.form.schema)}]
            body["tool_choice"] = {"type": "tool", "name": "verdict"}
        return body

    def read(self, raw: bytes, sent: Mapping[str, Any], max_tokens: int) -> Reply:
        """Read a message: its texts put together, and a tool's input as JSON; thoughts are left out."""
        data = read_body(raw)
        content = data.get("content")
        if not isinstance(content, list):
            raise NoCompletionError("no content")
        texts: list[str] = []
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind == "text" and isinstance(part.get("text"), str):
                texts.append(part["text"])
            elif kind == "tool_use" and isinstance(part.get("input"), dict):
                texts.append(json.dumps(part["input"]))
            elif not isinstance(kind, str) or "thinking" not in kind:
                raise NoCompletionError("content with a part that is no text")
        read, written = self.usage(data)
        asked = sum(len(str(one["content"])) for one in sent["messages"]) + len(str(sent.get("system", "")))
        cut = data.get("stop_reason") == "max_tokens"
        return make_reply(encodable("".join(texts)), read, written, sent, max_tokens, asked, cut=cut)

    def usage(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """Return the tokens read and written that a reply's body names."""
        return read_usage(data, "usage", "input_tokens", "output_tokens")


class Gemini:
    """The requests of Gemini's ``generateContent``."""

    def headers(self, key: str) -> dict[str, str]:
        """Return the key in the header that Gemini reads."""
        return {"x-goog-api-key": key} if key else {}

    def path(self, section: Endpoint) -> str:
        """Return the model's own path."""
        return f"models/{quote(section.model.removeprefix('models/'), safe='')}:generateContent"

    def body(self, section: Endpoint, call: Call) -> dict[str, Any]:
        """Return the body: contents, with roles of its own, and a configuration."""
        messages = write_messages(call.messages)
        config: dict[str, Any] = {"temperature": call.temperature, "maxOutputTokens": section.max_tokens}
        if call.seed is not None:
            config["seed"] = call.seed
        if call.form.schema is not None:
            schema = {name: value for name, value in call.form.schema.items() if name != "additionalProperties"}
            config |= {"responseMimeType": "application/json", "responseSchema": schema}
        if call.form.odds:
            config |= {"responseLogprobs": True, "logprobs": 5}
        body: dict[str, Any] = {
            "contents": [
                {"role": "model" if one["role"] == "assistant" else "user", "parts": [{"text": one["content"]}]}
                for one in messages
                if one["role"] != "system"
            ],
            "generationConfig": config,
        }
        system = [{"text": one["content"]} for one in messages if one["role"] == "system"]
        return body | ({"systemInstruction": {"parts": system}} if system else {})

    def read(self, raw: bytes, sent: Mapping[str, Any], max_tokens: int) -> Reply:
        """Read the first candidate: its texts put together, thoughts left out."""
        data = read_body(raw)
        candidate = first_object(data.get("candidates"), "candidates")
        content, finish = candidate.get("content"), candidate.get("finishReason")
        parts = content.get("parts") if isinstance(content, dict) else None
        if not isinstance(parts, list):
            if not isinstance(finish, str):
                raise NoCompletionError("no content")
            parts = []  # blocked, or all of the budget thought away: an answer without text
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
            raise NoCompletionError("content with a part that is no text")
        text = encodable("".join(part["text"] for part in parts if part.get("thought") is not True))
        read, written = self.usage(data)
        asked = sum(len(str(part["text"])) for one in sent["contents"] for part in one["parts"])
        reply = make_reply(text, read, written, sent, max_tokens, asked, cut=finish == "MAX_TOKENS")
        return replace(reply, yes=read_odds(_candidates(candidate.get("logprobsResult"))))

    def usage(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """Return the tokens read and written that a reply's body names, thoughts among the written ones."""
        usage = data.get("usageMetadata")
        if not isinstance(usage, dict):
            return None, None
        answer, thoughts = usage.get("candidatesTokenCount", 0), usage.get("thoughtsTokenCount", 0)
        written = answer + thoughts if isinstance(answer, int) and isinstance(thoughts, int) else None
        return usage.get("promptTokenCount"), written


def _candidates(result: object) -> list[list[tuple[object, object]]]:
    """(text, log-probability) by position of what Gemini drew, and of its alternatives."""
    drawn = result.get("chosenCandidates") if isinstance(result, dict) else None
    top = result.get("topCandidates") if isinstance(result, dict) else None
    if not isinstance(drawn, list) or not isinstance(top, list):
        return []
    rows: list[list[tuple[object, object]]] = []
    for one, others in zip(drawn, top, strict=False):
        candidates = others.get("candidates") if isinstance(others, dict) else None
        listed = [one, *(candidates if isinstance(candidates, list) else [])]
        rows.append([(c.get("token"), c.get("logProbability")) for c in listed if isinstance(c, dict)])
    return rows


def dialect_of(section: Endpoint) -> Dialect:
    """Return how an endpoint's calls are written."""
    dialect: Dialect = extensions.load("providers", section.provider)()
    return dialect
