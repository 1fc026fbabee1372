"""HTTP calls to one vLLM server: bounded in time, with errors that say what failed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx2

from levelhead.diagnosis.notice import printable
from levelhead.recipe.generator import Vllm
from levelhead.terminal.secrets import Secrets, key_in, secrets_of


class ServerLostError(Exception):
    """A server cannot be reached, or broke off; another server can do the same work."""


class ServerStaleError(Exception):
    """A server does not hold the weights that it was given: it has been started anew."""


class HangsError(Exception):
    """A server has not answered within the time that the recipe gives it."""


class RefusedError(Exception):
    """A server answers a call with an HTTP error.

    Args:
        path: Of the call.
        status: HTTP status.
        said: The beginning of what it said.
    """

    def __init__(self, path: str, status: int, said: str) -> None:
        super().__init__(f"{path} answers HTTP {status}{f': {said}' if said else ''}")
        self.path, self.status, self.said = path, status, said


EXCERPT = 300
"""Characters that are quoted of what a server says."""
MOST_BYTES = 16 << 20
"""Bytes that a reply may have beside its tokens."""
BYTES_A_TOKEN = 2048
"""Bytes of a reply for each token that was asked for."""
_MOST_SAID = 4096


class Client:
    """Connection to one server; made and used on one event loop.

    Args:
        url: Of the server.
        section: The recipe's ``generator``.
        transport: Another way to the server than the network, for tests.

    Raises:
        InputError: The environment variable that should hold the key holds none.
    """

    def __init__(self, url: str, section: Vllm, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {key}"} if (key := key_in(section.api_key_env, "generator")) else {}
        self._secrets = Secrets(key, *secrets_of(self.url))
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=section.concurrency)
        self._http = httpx2.AsyncClient(
            base_url=self.url, headers=headers, timeout=None, transport=transport, limits=limits, trust_env=False
        )
        # After a failed call of a development route a server closes the connection without saying so.
        once = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        self._control = httpx2.AsyncClient(
            base_url=self.url, headers=headers, timeout=None, transport=transport, limits=once, trust_env=False
        )

    async def sample(self, path: str, body: Mapping[str, Any], seconds: float, tokens: int = 0) -> Any:
        """Post a call that samples ``tokens`` at most and return the reply's JSON; see :meth:`control` for errors."""
        most = MOST_BYTES + BYTES_A_TOKEN * tokens
        return await self._call(self._http, "POST", path, seconds, body, most)

    async def control(
        self, path: str, seconds: float, body: Mapping[str, Any] | None = None, method: str = "POST"
    ) -> Any:
        """Call a route that manages the server and return the reply's JSON, ``None`` where there is none.

        Raises:
            HangsError: No whole answer within ``seconds``.
            RefusedError: Any other status than 2xx.
            ServerLostError: The server cannot be reached, or broke off.
        """
        return await self._call(self._control, method, path, seconds, body, MOST_BYTES)

    async def close(self) -> None:
        """Close all connections to the server; a request under way fails."""
        await self._http.aclose()
        await self._control.aclose()

    async def _call(
        self,
        http: httpx2.AsyncClient,
        method: str,
        path: str,
        seconds: float,
        body: Mapping[str, Any] | None,
        most: int,
    ) -> Any:
        content = bytearray()
        try:
            async with (
                asyncio.timeout(seconds),
                http.stream(method, path, json=None if body is None else dict(body)) as answer,
            ):
                async for piece in answer.aiter_bytes():
                    content += piece
                    if len(content) > most:
                        raise ServerLostError(f"{method} {path} is answered with more than {most} bytes")
        except TimeoutError as error:
            raise HangsError(f"{method} {path} has not been answered for {seconds:g} s") from error
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            raise ServerLostError(f"{type(error).__name__}: {self._excerpt(str(error))}".rstrip(": ")) from error
        if not answer.is_success:
            raise RefusedError(path, answer.status_code, self._excerpt(content.decode("utf-8", "replace")))
        try:
            return json.loads(content) if content.strip() else None
        except (ValueError, RecursionError):
            return None

    def _excerpt(self, text: str) -> str:
        """What a server says of an error, out of its JSON where it is some, without the key."""
        try:
            detail: Any = json.loads(text)
            while isinstance(detail, dict):
                detail = detail.get("message") or detail.get("error") or detail.get("detail") or json.dumps(detail)
            text = str(detail)
        except (ValueError, RecursionError):
            pass
        return printable(self._secrets.clean(text[:_MOST_SAID]), EXCERPT)
