"""Calls to a chat endpoint: bounded, retried, budgeted, cached and counted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import httpx2

from levelhead.recipe.endpoint import Endpoint
from levelhead.records import ChatMessage
from levelhead.tasks.endpoint.cache import CacheError, Reply, ReplyCache, content_key
from levelhead.tasks.endpoint.dialects import Call, Form, dialect_of
from levelhead.tasks.endpoint.exchange import (
    BudgetError,
    EndpointError,
    Exchange,
    FailedAttemptError,
    Response,
    UnreachedError,
    Waits,
)
from levelhead.tasks.endpoint.pace import Gate, Pace, hint, merge
from levelhead.tasks.endpoint.wire import NoCompletionError, counted_tokens, read_body, write_body
from levelhead.tasks.metering import Usage
from levelhead.terminal.secrets import without_secrets

log = logging.getLogger(__name__)

ALONE = 4
"""A call that gets no reply while others do is repeated for so many times ``patience_s``."""
_NO_ENTRY = frozenset({401, 403})
_BAD_BODY = frozenset({400, 422, 501})


class ChatClient:
    """One batch's connection to the endpoint; use it as an async context manager."""

    def __init__(
        self,
        section: Endpoint,
        usage: Usage,
        cache: ReplyCache | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        where: str = "tasks[].executor",
        pace: Pace | None = None,
    ) -> None:
        """Set up a client that adds to ``usage``.

        Args:
            section: How the endpoint is reached.
            usage: Counts on, over the batches of a run.
            cache: Where replies are kept, if anywhere.
            transport: Another way to the endpoint than the network, for tests.
            where: The section's place in a recipe, for messages.
            pace: How fast the endpoint is asked, if that is to be remembered from batch to batch.

        Raises:
            InputError: The URL cannot be used, or the environment variable that should hold the key holds none.
        """
        self._section = section
        self._url = without_secrets(section.base_url)
        self._where = where
        self._usage = usage
        self._cache = cache
        self._dialect = dialect_of(section)
        self._slots = asyncio.Semaphore(section.concurrency)
        self._pace = pace or Pace(section)
        self._gate = Gate(self._pace.width)
        self._asked: dict[str, asyncio.Task[Reply]] = {}
        self._down_since: float | None = None
        self._closing = False
        self._fault: EndpointError | None = None
        self._ended = asyncio.Event()
        self._exchange = Exchange(section, where, transport)

    async def __aenter__(self) -> Self:
        """Open the connection to the endpoint."""
        await self._exchange.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the attempts under way finish, so that what is paid for is kept; then close the connection."""
        self._closing = True
        self._ended.set()
        unfinished = [task for task in self._asked.values() if not task.done()]
        if unfinished and not isinstance(error, asyncio.CancelledError):
            await asyncio.wait(unfinished, timeout=self._section.timeout_s)
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)
        await self._exchange.__aexit__()

    def quote(self, said: str, most: int) -> str:
        """Return the beginning of what the endpoint said: one line, fit to be printed, without the key."""
        return self._exchange.quote(said, most)

    async def ask(
        self,
        messages: Sequence[ChatMessage],
        temperature: float,
        sample: str,
        *,
        form: Form = Form(),  # noqa: B008 - it is frozen
        occasion: str = "",
    ) -> Reply:
        """Return the model's answer to some messages.

        Equal calls (same messages, temperature, sample and occasion) are one call, whether they come one after the
        other or at once.

        Args:
            messages: Of the conversation so far.
            temperature: Of sampling.
            sample: Which sample this is; the seed that is sent depends on it alone.
            form: What the reply is asked to be.
            occasion: Tells apart calls that are the same to the endpoint, where each is to be made.

        Raises:
            BudgetError: The budget is used up; calls under way are let finish, and kept in the cache.
            EndpointError: The endpoint refuses this call or has refused another, or has given no usable reply for
                ``patience_s``, or none to this call for four times as long.
        """
        seed = random.Random(sample).randrange(2**31) if self._section.send_seed else None
        call = Call(messages, temperature, seed, form)
        body = merge(self._dialect.body(self._section, call), self._section.extra_body)
        key = content_key(body, sample + occasion)
        if key not in self._asked:
            self._asked[key] = asyncio.create_task(self._answer(key, body))
        return await asyncio.shield(self._asked[key])

    async def _answer(self, key: str, body: Mapping[str, Any]) -> Reply:
        cached = self._look_up(key)
        if cached is not None:
            self._usage.cached += 1
            return cached
        async with self._slots:
            if self._closing:
                raise asyncio.CancelledError
            self._check_fault()
            began = time.monotonic()
            try:
                reply = await self._persist(key, body)
            except BudgetError:
                raise  # calls under way go on
            except EndpointError as error:
                self._fault = self._fault or error
                self._ended.set()
                raise
            self._usage.took(time.monotonic() - began)
            # On disk before it is counted: a run killed in between asks nothing twice.
            stored = self._keep(key, reply)
            self._count(reply)
        return stored

    def _look_up(self, key: str) -> Reply | None:
        try:
            return self._cache.get(key) if self._cache is not None else None
        except CacheError as error:
            self._lose_cache(error)
            return None

    def _keep(self, key: str, reply: Reply) -> Reply:
        """Return the reply as the cache has it: another process may have been first, and all go by the same one."""
        try:
            return self._cache.put(key, reply) if self._cache is not None else reply
        except CacheError as error:
            self._lose_cache(error)
            return reply

    def _lose_cache(self, error: CacheError) -> None:
        """Go on without the cache: a reply that is paid for is worth more than its copy on disk."""
        self._cache = None
        self._tell(f"{error}; {self._where}.cache is not used for this batch, and its replies are not kept")

    def _check_fault(self) -> None:
        """Ask nothing more of an endpoint that has ended the batch: a key that is refused once is refused always."""
        if self._fault is not None:
            raise EndpointError(str(self._fault), self._fault.cause, self._fault.fix) from self._fault

    def _check_budget(self) -> None:
        section, usage = self._section, self._usage
        if section.max_calls is not None and usage.attempts >= section.max_calls:
            raise BudgetError(
                f"{self._where}.max_calls is {section.max_calls}, and as many calls are made, failed ones included; "
                "raise it and resume the run"
            )
        if section.max_total_tokens is not None and usage.tokens >= section.max_total_tokens:
            raise BudgetError(
                f"{self._where}.max_total_tokens is {section.max_total_tokens}, and {usage.tokens} tokens are used "
                f"in {usage.calls} calls; raise it and resume the run"
            )
        cost = section.cost(usage.prompt_tokens, usage.completion_tokens) or 0.0
        if section.max_cost is not None and cost >= section.max_cost:
            raise BudgetError(
                f"{self._where}.max_cost is {section.max_cost:g}, and {usage.calls} calls have cost {cost:.4g}; "
                "raise it and resume the run"
            )

    def _count(self, reply: Reply) -> None:
        self._usage.calls += 1
        self._usage.prompt_tokens += reply.prompt_tokens
        self._usage.completion_tokens += reply.completion_tokens
        self._usage.estimated += not reply.counted

    async def _persist(self, key: str, body: Mapping[str, Any]) -> Reply:
        """Ask until there is a reply, with growing waits, for as long as there is patience."""
        waits, began, patience = Waits(self._section.backoff_s, key), time.monotonic(), self._section.patience_s
        while True:
            began += await self._take_turn(body)
            try:
                async with self._gate:
                    attempted = time.monotonic()
                    reply = await self._attempt(body)
            except FailedAttemptError as error:
                self._usage.retries += 1
                if error.throttled:
                    self._narrow(attempted)
                self._note_silence(error)
                now = time.monotonic()
                silent_s = now - max(began, self._down_since or began)
                if silent_s >= patience or now - began >= ALONE * patience:
                    raise self._outage(now - began, error, alone=silent_s < patience) from error
                await self._pause(waits.next(error.after_s, patience - silent_s))
                self._check_fault()
                if self._closing:
                    raise asyncio.CancelledError from error
            else:
                self._note_reply()
                self._pace.rates.correct(reply.tokens - self._estimate(body))
                return reply

    def _estimate(self, body: Mapping[str, Any]) -> float:
        """Tokens that a call is expected to take at most: a token for four bytes, and all of its budget."""
        return len(write_body(body)) / 4 + self._section.max_tokens

    async def _take_turn(self, body: Mapping[str, Any]) -> float:
        """Wait until the recipe's rates allow another call; returns the seconds that this took."""
        if not self._pace.rates:
            return 0.0
        wait = self._pace.rates.reserve(self._estimate(body))
        await self._pause(wait)
        self._check_fault()
        if self._closing:
            raise asyncio.CancelledError
        return wait

    def _narrow(self, began: float) -> None:
        self._usage.throttled += 1
        if self._pace.width.refuse(began):
            self._tell(
                f"{self._url} says that there are too many calls (429); at most {int(self._pace.width)} at once now"
            )

    async def _pause(self, seconds: float) -> None:
        """Wait, but no longer than the batch goes on."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)

    async def _attempt(self, body: Mapping[str, Any]) -> Reply:
        """Send a call; again at once where the endpoint says which key of it to leave out."""
        while True:
            self._check_budget()
            sent = self._pace.learned.apply(body)
            self._usage.attempts += 1
            try:
                response = await self._exchange.post(self._dialect.path(self._section), write_body(sent))
            except UnreachedError:
                self._usage.attempts -= 1
                raise
            if response.good:
                return self._read(response, sent)
            if not self._learns(response, sent):
                raise self._refusal(response, sent)

    def _learns(self, response: Response, sent: Mapping[str, Any]) -> bool:
        """Whether a refusal names a key that calls can go without, or has been found to by another call."""
        if response.status not in _BAD_BODY:
            return False
        message = response.body.decode(errors="replace")
        change = self._pace.learned.learn(message, sent, self._section.extra_body)
        if change is not None:
            self._tell(f"{self._url} {change}")
        return change is not None or self._pace.learned.apply(sent) != sent

    def _read(self, response: Response, sent: Mapping[str, Any]) -> Reply:
        try:
            reply = self._dialect.read(response.body, sent, self._section.max_tokens)
        except NoCompletionError as error:
            self._count_tokens(response.body, sent)
            excerpt = self._exchange.quote(response.body)
            kind = f" of type {response.content_type}" if response.content_type else ""
            why = self._exchange.quote(str(error))
            reason = f"HTTP {response.status} with a reply{kind} that is no chat completion: {why}"
            raise FailedAttemptError(f"{reason}: {excerpt}" if excerpt else reason) from error
        return replace(reply, text=self._exchange.secrets.clean_reply(reply.text))

    def _count_tokens(self, raw: bytes, sent: Mapping[str, Any]) -> None:
        """Add the tokens of a reply that is of no use: it is paid for as well."""
        try:
            read, written = self._dialect.usage(read_body(raw))
        except NoCompletionError:
            return
        tokens = counted_tokens(read, written, sent, self._section.max_tokens)
        if tokens is not None:
            self._usage.prompt_tokens += tokens[0]
            self._usage.completion_tokens += tokens[1]

    def _refusal(self, response: Response, sent: Mapping[str, Any]) -> EndpointError:
        """What to say of a call that the endpoint will not take, however often it is made."""
        url, status, cause = self._url, response.status, "refusal"
        named = hint(response.body.decode(errors="replace"), sent, self._where) if status in _BAD_BODY else ""
        fix = named or f"check {self._where}.base_url, model and max_tokens against the endpoint"
        if status in _NO_ENTRY:
            cause, holder = "authentication", self._section.api_key_env
            where = f"set {holder}" if holder else f"name a variable in {self._where}.api_key_env that is set"
            fix = f"{where} to a key that the endpoint accepts"
        excerpt = self._exchange.quote(response.body)
        if response.redirect:
            excerpt = f"it sends calls on to {response.location}, where the key would go as well"
            fix = f"set {self._where}.base_url to where the endpoint is, if you trust it"
        return EndpointError(f"{url} refuses a call with HTTP {status}: {excerpt}; {fix}", cause, fix)

    def _outage(self, seconds: float, error: Exception, *, alone: bool) -> EndpointError:
        """What to say of a call that has been repeated for as long as there is patience; others may have replies."""
        whom = "to one call" if alone else ""
        return EndpointError(
            f"{self._url} has given no reply {whom}{' ' if alone else ''}for {seconds:.0f} s ({error}); "
            f"start it again and resume the run, or raise {self._where}.patience_s",
            "outage",
            f"start the endpoint at {self._url}, or mend {self._where}.base_url",
        )

    def _note_silence(self, error: Exception) -> None:
        if self._down_since is None:
            self._down_since = time.monotonic()
            self._tell(
                f"{self._url} does not answer ({error}); calls wait and are repeated for up to "
                f"{self._section.patience_s:.0f} s, none is lost"
            )

    def _note_reply(self) -> None:
        self._pace.width.reply()
        if self._down_since is not None:
            seconds = time.monotonic() - self._down_since
            self._down_since = None
            self._tell(f"{self._url} answers again after {seconds:.0f} s; going on where it stopped")

    def _tell(self, message: str) -> None:
        if self._usage.tell(message):
            log.warning("%s", message)
