"""One HTTP exchange with an endpoint that may do anything: its deadline and caps, what can fail, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Self

import httpx2

from levelhead.diagnosis.notice import printable
from levelhead.errors import InputError, RewardError
from levelhead.recipe.endpoint import Endpoint
from levelhead.tasks.endpoint.dialects import dialect_of
from levelhead.terminal.secrets import Secrets, key_in, secrets_of, without_secrets


class EndpointError(RewardError):
    """The endpoint cannot be used: it refuses, or gives no usable reply for longer than the recipe has patience.

    Args:
        message: What happened, in one line.
        cause: ``authentication`` (401, 403), ``refusal`` (any other status), ``outage`` or ``budget``.
        fix: What to change.
    """

    def __init__(self, message: str, cause: str = "refusal", fix: str = "") -> None:
        super().__init__(message)
        self.cause, self.fix = cause, fix


class BudgetError(EndpointError):
    """The budget in calls, tokens or money is used up."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "budget", "raise the budget that the message names and resume the run")


class FailedAttemptError(Exception):
    """One attempt at a call came to nothing; the next one may do better.

    Attributes:
        after_s: Seconds that the endpoint asks to be left alone, if it does.
        throttled: Whether there were too many calls (429).
    """

    def __init__(self, reason: str, after_s: float | None = None, *, throttled: bool = False) -> None:
        super().__init__(reason)
        self.after_s, self.throttled = after_s, throttled


class UnreachedError(FailedAttemptError):
    """No connection could be made: the call has not reached the endpoint, and cannot be billed."""


LONGEST_WAIT_S = 30.0
"""Longest wait of our own between two attempts at a call."""
LONGEST_RETRY_AFTER_S = 120.0
"""Longest wait that an endpoint is granted by ``Retry-After``."""
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def read_retry_after(header: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds that a ``Retry-After`` header asks for, 0 or more.

    It holds seconds (RFC 9110, 10.2.3; fractions are read as well) or a date.  ``None`` for anything else.

    Args:
        header: Its value; ``None`` where there is none.
        now: The time that a date is compared with.
    """
    text = (header or "").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        return max(0.0, (date - (now or datetime.now(UTC))).total_seconds())
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


class Waits:
    """The waits between the attempts at one call.

    They double from ``backoff_s`` up to 30 s, each shortened by a random factor of 0.5 to 1, so that calls that failed
    together do not come back together.  An endpoint may ask for longer, up to 120 s, but never for less.

    Args:
        backoff_s: The first wait.
        seed: Fixes the jitter: the content of the call.
    """

    def __init__(self, backoff_s: float, seed: str) -> None:
        self._next = min(backoff_s, LONGEST_WAIT_S)
        self._random = random.Random(f"waits/{seed}")

    def next(self, asked_s: float | None, left_s: float) -> float:
        """Return the seconds to wait before the next attempt.

        Args:
            asked_s: What the endpoint asks for, if it does.
            left_s: Patience that is left: the last attempt is made when it ends.
        """
        own = self._next * self._random.uniform(0.5, 1.0)
        self._next = min(2 * self._next, LONGEST_WAIT_S)
        asked = min(asked_s or 0.0, LONGEST_RETRY_AFTER_S) * self._random.uniform(1.0, 1.1)
        return min(max(own, asked), left_s)


BYTES_BESIDE_TEXT = 1_048_576
"""Bytes that a reply may have besides its text."""
BYTES_A_TOKEN = 256
"""Bytes of a reply's text a token of the recipe's ``max_tokens``, escapes included."""
EXCERPT_BYTES = 4096
"""Bytes that are read of the body of any other status than 2xx, to quote from."""
EXCERPT_S = 5.0
"""Seconds that are waited for these."""
EXCERPT = 200
"""Characters that are quoted of what an endpoint says."""
_THROTTLED, _NOT_IMPLEMENTED = 429, 501
_BUSY = frozenset({408, 409, 425, _THROTTLED})
_CODINGS = frozenset({"", "identity", "gzip", "x-gzip", "deflate"})
_HOST = re.compile(r"[\w.~-]+|[0-9a-fA-F:.]+")


@dataclass(frozen=True, slots=True)
class Response:
    """What came back: a status and as much of the body as was read."""

    status: int
    body: bytes
    location: str = ""
    content_type: str = ""

    @property
    def good(self) -> bool:
        """Whether the body should hold a reply."""
        return 200 <= self.status < 300

    @property
    def redirect(self) -> bool:
        """Whether the endpoint sends the caller elsewhere."""
        return 300 <= self.status < 400 and bool(self.location)


class Exchange:
    """Posts to one endpoint; use it as an async context manager.

    Redirects are not followed (a key must not reach another host), cookies are not kept, and no other compression than
    gzip and deflate is read.

    Args:
        section: How the endpoint is reached.
        where: The section's place in a recipe, for messages.
        transport: Another way to the endpoint than the network, for tests.

    Raises:
        InputError: The URL cannot be used, or the environment variable that should hold the key holds none.
    """

    def __init__(self, section: Endpoint, where: str, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self._deadline_s = section.timeout_s
        key = key_in(section.api_key_env, where)
        self.secrets = Secrets(key, *secrets_of(section.base_url))
        self.most_bytes = BYTES_BESIDE_TEXT + BYTES_A_TOKEN * section.max_tokens
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "gzip, deflate"}
        headers |= dialect_of(section).headers(key)
        shown = without_secrets(section.base_url)
        try:
            self._http = httpx2.AsyncClient(
                base_url=section.base_url.rstrip("/") + "/",
                headers=headers,
                timeout=section.timeout_s,
                transport=transport,
                limits=httpx2.Limits(max_connections=section.concurrency),
                follow_redirects=False,
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            )
        except (httpx2.InvalidURL, ValueError) as error:
            raise InputError(f"{where}.base_url: {shown!r} is no URL ({self.quote(str(error))})") from error
        url = self._http.base_url
        if not _HOST.fullmatch(url.host) or not 0 < (url.port or 80) < 65536:
            raise InputError(f"{where}.base_url: {shown!r} names no host, or no port from 1 to 65535")

    async def __aenter__(self) -> Self:
        """Open the connection to the server."""
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection to the server."""
        await self._http.__aexit__(None, None, None)

    async def post(self, path: str, content: bytes) -> Response:
        """Send a body and return the answer, read to its end and within ``timeout_s``.

        Of a status other than 2xx only the beginning of the body is read.

        Raises:
            FailedAttemptError: The endpoint cannot be reached, is busy (408, 409, 425, 429, 5xx but 501), takes longer
                than ``timeout_s`` for all of its answer, breaks off, or sends more than ``most_bytes``.
        """
        try:
            async with asyncio.timeout(self._deadline_s):
                response, after_s = await self._post(path, content)
        except TimeoutError as error:
            raise FailedAttemptError(f"no complete reply within {self._deadline_s:g} s") from error
        except (httpx2.HTTPError, httpx2.StreamError, OSError, ValueError) as error:
            text = f"{type(error).__name__}: {self.quote(str(error))}"
            unreached = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            raise (UnreachedError if unreached else FailedAttemptError)(text.rstrip(": ")) from error
        if response.status in _BUSY or (response.status >= 500 and response.status != _NOT_IMPLEMENTED):
            excerpt = self.quote(response.body)
            reason = f"HTTP {response.status}{f': {excerpt}' if excerpt else ''}"
            raise FailedAttemptError(reason, after_s, throttled=response.status == _THROTTLED)
        return response

    def quote(self, said: bytes | str, most: int = EXCERPT) -> str:
        """Return the beginning of what an endpoint said: one line, fit to be printed, without the key in any spelling.

        Whatever an endpoint says of itself (a body, a header, the text of a failure) leaves through here.
        """
        text = said[:EXCERPT_BYTES].decode(errors="replace") if isinstance(said, bytes) else said[:EXCERPT_BYTES]
        return printable(self.secrets.clean(text), most)

    async def _post(self, path: str, content: bytes) -> tuple[Response, float | None]:
        async with self._http.stream("POST", path, content=content) as answer:
            headers, status = answer.headers, answer.status_code
            good = 200 <= status < 300
            coding = headers.get("content-encoding", "").strip().lower()
            if not good:
                body = await self._excerpt(answer) if coding in _CODINGS else b""
            elif coding not in _CODINGS:
                raise FailedAttemptError(f"a reply compressed as {self.quote(coding, 40)}, which was not asked for")
            else:
                body, whole = await _read(answer, self.most_bytes)
                if not whole:
                    raise FailedAttemptError(f"a reply of more than {self.most_bytes} bytes")
            place = self.quote(headers.get("location", ""))
            kind = self.quote(headers.get("content-type", ""), 40)
            return Response(status, body, place, kind), read_retry_after(headers.get("retry-after"))

    async def _excerpt(self, answer: httpx2.Response) -> bytes:
        """Read the beginning of a body; the status stands, whatever becomes of it."""
        try:
            async with asyncio.timeout(min(self._deadline_s / 2, EXCERPT_S)):
                return (await _read(answer, EXCERPT_BYTES))[0]
        except (httpx2.HTTPError, httpx2.StreamError, OSError, ValueError):
            return b""


async def _read(answer: httpx2.Response, most: int) -> tuple[bytes, bool]:
    """Return at most so many bytes of a body, and whether that is all of it, as sent and as unpacked."""
    held = bytearray()
    async with contextlib.aclosing(answer.aiter_bytes()) as pieces:
        async for piece in pieces:
            held += piece[: most + 1 - len(held)]
            if len(held) > most or answer.num_bytes_downloaded > most:
                return bytes(held[:most]), False
    return bytes(held), True
