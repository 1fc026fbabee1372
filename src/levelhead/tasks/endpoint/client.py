"""Calls to an OpenAI-compatible chat endpoint: bounded, retried, budgeted, cached and counted."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx2

from levelhead.errors import InputError, RewardError
from levelhead.recipe.endpoint import Endpoint
from levelhead.records import Message
from levelhead.tasks.endpoint.cache import Reply, ReplyCache, content_key

log = logging.getLogger(__name__)

_NO_ENTRY = frozenset({401, 403})
_BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT_S = 30.0
_LATENCIES = 10_000


class EndpointError(RewardError):
    """The endpoint cannot be used: it refuses, or stays silent for longer than the recipe has patience.

    Args:
        message: What happened, in one line.
        cause: ``authentication`` (401, 403), ``refusal`` (any other status), ``outage`` or ``budget``.
        fix: What to change.
    """

    def __init__(self, message: str, cause: str = "refusal", fix: str = "") -> None:
        super().__init__(message)
        self.cause, self.fix = cause, fix


class BudgetError(EndpointError):
    """The budget in calls or tokens is used up."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "budget", "raise the budget that the message names and resume the run")


class _RetryableError(Exception):
    def __init__(self, reason: str, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.after_s = after_s


@dataclass(slots=True)
class Usage:
    """What calls have cost since the executor was made.

    Attributes:
        calls: Replies that came from the endpoint, each counted once, however often it had to be asked.
        cached: Replies that came from the cache.
        prompt_tokens: Tokens read, over the endpoint's replies.
        completion_tokens: Tokens written, over the endpoint's replies.
        retries: Attempts that failed and were repeated.
        estimated: Replies whose tokens the endpoint did not count.
        in_flight: Calls that were begun and have no reply yet.
        news: What a person should know of the endpoint, in order, until somebody takes it away.
        latencies: Seconds from sending a call to its reply, retries and their waits included, until taken away.
    """

    calls: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    retries: int = 0
    estimated: int = 0
    in_flight: int = 0
    news: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list, compare=False)

    @property
    def tokens(self) -> int:
        """Tokens over all replies of the endpoint."""
        return self.prompt_tokens + self.completion_tokens


class ChatClient:
    """One batch's connection to the endpoint; use it as an async context manager."""

    def __init__(
        self,
        section: Endpoint,
        usage: Usage,
        cache: ReplyCache | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        where: str = "tasks[].executor",
    ) -> None:
        """Set up a client that adds to ``usage``.

        Args:
            section: How the endpoint is reached.
            usage: Counts on, over the batches of a run.
            cache: Where replies are kept, if anywhere.
            transport: Another way to the endpoint than the network, for tests.
            where: The section's place in a recipe, for messages.

        Raises:
            InputError: The environment variable that should hold the key is not set.
        """
        self._section = section
        self._where = where
        self._usage = usage
        self._cache = cache
        self._slots = asyncio.Semaphore(section.concurrency)
        self._asked: dict[str, asyncio.Task[Reply]] = {}
        self._down_since: float | None = None
        self._closing = False
        self._http = httpx2.AsyncClient(
            base_url=section.base_url.rstrip("/") + "/",
            headers=_headers(section, where),
            timeout=section.timeout_s,
            transport=transport,
            limits=httpx2.Limits(max_connections=section.concurrency),
        )

    async def __aenter__(self) -> Self:
        """Open the connection."""
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the calls under way finish, so that what is paid for is kept; then close the connection."""
        self._closing = True
        left = [task for task in self._asked.values() if not task.done()]
        if left and not isinstance(error, asyncio.CancelledError):
            await asyncio.wait(left, timeout=self._section.timeout_s)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._http.__aexit__(kind, error, trace)

    async def ask(self, messages: Sequence[Message], temperature: float, sample: str) -> Reply:
        """Return the model's answer to some messages.

        Equal calls (same messages, temperature and sample) are one call, whether they come one after the other or at
        once.

        Raises:
            BudgetError: The budget is used up; calls under way are let finish, and kept in the cache.
            EndpointError: The endpoint refuses the call, or has been silent for ``patience_s``.
        """
        body = self._body(messages, temperature, sample)
        key = content_key(body, sample)
        if key not in self._asked:
            self._asked[key] = asyncio.create_task(self._answer(key, body))
        return await asyncio.shield(self._asked[key])

    def _body(self, messages: Sequence[Message], temperature: float, sample: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._section.model,
            "messages": [dict(message) for message in messages],
            "temperature": temperature,
            "max_tokens": self._section.max_tokens,
        }
        if self._section.send_seed:
            body["seed"] = random.Random(sample).randrange(2**31)
        return body

    async def _answer(self, key: str, body: Mapping[str, Any]) -> Reply:
        known = self._cache.get(key) if self._cache is not None else None
        if known is not None:
            self._usage.cached += 1
            return known
        async with self._slots:
            if self._closing:
                raise asyncio.CancelledError
            self._check_budget()
            self._usage.in_flight += 1
            began = time.monotonic()
            try:
                reply = await self._persist(body)
            finally:
                self._usage.in_flight -= 1
            self._usage.latencies = [*self._usage.latencies, time.monotonic() - began][-_LATENCIES:]
            # On disk before it is counted: a run killed in between asks nothing twice.
            if self._cache is not None:
                self._cache.put(key, reply)
            self._count(reply)
        return reply

    def _check_budget(self) -> None:
        section, usage = self._section, self._usage
        if section.max_calls is not None and usage.calls + usage.in_flight >= section.max_calls:
            raise BudgetError(
                f"{self._where}.max_calls is {section.max_calls}, and as many calls are made; "
                "raise it and resume the run"
            )
        if section.max_total_tokens is not None and usage.tokens >= section.max_total_tokens:
            raise BudgetError(
                f"{self._where}.max_total_tokens is {section.max_total_tokens}, and {usage.tokens} tokens are used "
                f"in {usage.calls} calls; raise it and resume the run"
            )

    def _count(self, reply: Reply) -> None:
        self._usage.calls += 1
        self._usage.prompt_tokens += reply.prompt_tokens
        self._usage.completion_tokens += reply.completion_tokens
        self._usage.estimated += not reply.counted

    async def _persist(self, body: Mapping[str, Any]) -> Reply:
        """Ask until there is a reply, with growing waits, for as long as there is patience."""
        wait, began = self._section.backoff_s, time.monotonic()
        while True:
            try:
                reply = await self._post(body)
            except _RetryableError as error:
                self._usage.retries += 1
                self._note_silence(error)
                silent_s = time.monotonic() - max(began, self._down_since or began)
                if silent_s >= self._section.patience_s:
                    raise EndpointError(
                        f"{self._section.base_url} has given no reply for {silent_s:.0f} s ({error}); "
                        f"start it again and resume the run, or raise {self._where}.patience_s",
                        "outage",
                        f"start the endpoint at {self._section.base_url}, or mend {self._where}.base_url",
                    ) from error
                # Jitter, so that calls that failed together do not come back together.
                pause = error.after_s if error.after_s is not None else wait * random.uniform(0.5, 1.0)
                await asyncio.sleep(min(pause, _LONGEST_WAIT_S))
                wait = min(2 * wait, _LONGEST_WAIT_S)
            else:
                self._note_reply()
                return reply

    async def _post(self, body: Mapping[str, Any]) -> Reply:
        try:
            response = await self._http.post("chat/completions", json=body)
        except httpx2.TransportError as error:
            raise _RetryableError(f"{type(error).__name__}: {error}".rstrip(": ")) from error
        if response.status_code in _BUSY:
            raise _RetryableError(f"HTTP {response.status_code}", _retry_after(response))
        if response.status_code != 200:
            raise self._refusal(response)
        try:
            return _read_reply(response.json(), body)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise _RetryableError(f"a reply that is no chat completion: {response.text[:200].strip()}") from error

    def _refusal(self, response: httpx2.Response) -> EndpointError:
        """What to say of a call that the endpoint will not take, however often it is made."""
        url, status, cause = self._section.base_url, response.status_code, "refusal"
        fix = f"check {self._where}.base_url, model and max_tokens against the endpoint"
        if status in _NO_ENTRY:
            cause, holder = "authentication", self._section.api_key_env
            where = f"set {holder}" if holder else f"name a variable in {self._where}.api_key_env that is set"
            fix = f"{where} to a key that the endpoint accepts"
        said = " ".join(response.text[:200].split())
        return EndpointError(f"{url} refuses a call with HTTP {status}: {said}; {fix}", cause, fix)

    def _note_silence(self, error: Exception) -> None:
        if self._down_since is None:
            self._down_since = time.monotonic()
            self._tell(
                f"{self._section.base_url} does not answer ({error}); calls wait and are repeated for up to "
                f"{self._section.patience_s:.0f} s, none is lost"
            )

    def _note_reply(self) -> None:
        if self._down_since is not None:
            seconds = time.monotonic() - self._down_since
            self._down_since = None
            self._tell(f"{self._section.base_url} answers again after {seconds:.0f} s; going on where it stopped")

    def _tell(self, message: str) -> None:
        log.warning("%s", message)
        self._usage.news.append(message)


def _headers(section: Endpoint, where: str) -> dict[str, str]:
    if section.api_key_env is None:
        return {}
    key = os.environ.get(section.api_key_env)
    if not key:
        raise InputError(f"{where}.api_key_env names {section.api_key_env}, and that environment variable is not set")
    return {"Authorization": f"Bearer {key}"}


def _retry_after(response: httpx2.Response) -> float | None:
    try:
        return max(0.0, float(response.headers.get("retry-after", "")))
    except ValueError:
        return None


def _read_reply(data: Mapping[str, Any], body: Mapping[str, Any]) -> Reply:
    text = data["choices"][0]["message"].get("content") or ""
    usage = data.get("usage") or {}
    if "prompt_tokens" in usage and "completion_tokens" in usage:
        return Reply(text, int(usage["prompt_tokens"]), int(usage["completion_tokens"]))
    read = sum(len(str(message["content"])) for message in body["messages"])
    return Reply(text, read // 4 + 1, len(text) // 4 + 1, counted=False)
