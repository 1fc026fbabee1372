"""A client of an OpenEnv server; only the package ``websockets`` is needed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI, WebSocketException

from levelhead.contrib.openenv.wire import Reply, read_data, read_reply, request
from levelhead.diagnosis.notice import printable

MAX_MESSAGE = 100 * 1024 * 1024
"""Bytes of a message; observations may carry screenshots."""


class UnreachableError(ConnectionError):
    """The server cannot be reached, or has gone."""


class ClosedError(UnreachableError):
    """The server has closed the connection."""


def socket_url(url: str) -> str:
    """Return the address of the web socket of a server given by its ``http`` or ``ws`` address."""
    base = url.rstrip("/")
    for http, ws in (("http://", "ws://"), ("https://", "wss://")):
        if base.startswith(http):
            base = ws + base.removeprefix(http)
    return base if base.endswith("/ws") else f"{base}/ws"


class OpenEnvClient:
    """One environment on an OpenEnv server, on a connection of its own.

    Args:
        url: The server's address, ``http://host:port`` or ``ws://host:port``.
        timeout: Seconds that the server may take to answer.
    """

    def __init__(self, url: str, timeout: float = 60.0) -> None:
        self._url = socket_url(url)
        self._timeout = timeout
        self._socket: ClientConnection | None = None

    async def reset(self, **parameters: Any) -> Reply:
        """Start an episode; ``seed`` and ``episode_id`` are OpenEnv's own parameters, any other the environment's.

        Raises:
            UnreachableError: There is no connection.
            WireError: The server refused.
        """
        message = request("reset", parameters)
        was_connected = self._socket is not None
        try:
            return read_reply(await self._ask(message))
        except ClosedError:
            # A connection kept from an earlier episode may have been closed by the server in the meantime.
            if not was_connected:
                raise
        return read_reply(await self._ask(message))

    async def step(self, action: Mapping[str, Any]) -> Reply:
        """Take an action in the environment.

        Raises:
            UnreachableError: The connection is gone.
            WireError: The server refused.
        """
        return read_reply(await self._ask(request("step", action)))

    async def state(self) -> dict[str, Any]:
        """Return the environment's state: ``episode_id``, ``step_count`` and its own.

        Raises:
            UnreachableError: The connection is gone.
            WireError: The server refused.
        """
        return read_data(await self._ask(request("state")), "state")

    async def close(self) -> None:
        """Say goodbye and close the connection."""
        socket, self._socket = self._socket, None
        if socket is None:
            return
        with contextlib.suppress(WebSocketException, OSError, TimeoutError):
            await asyncio.wait_for(socket.send(request("close")), self._timeout)
        with contextlib.suppress(WebSocketException, OSError, TimeoutError):
            await asyncio.wait_for(socket.close(), self._timeout)

    async def _connected(self) -> ClientConnection:
        if self._socket is None:
            try:
                # A proxy from the environment is not for a server that the recipe names.
                self._socket = await connect(
                    self._url, open_timeout=self._timeout, max_size=MAX_MESSAGE, proxy=None, compression=None
                )
            # A redirect to an address that is none is a ValueError.
            except (OSError, TimeoutError, InvalidURI, InvalidHandshake, ValueError) as error:
                raise UnreachableError(f"no OpenEnv server answers at {self._url}: {printable(error)}") from error
        return self._socket

    async def _ask(self, message: str) -> str | bytes:
        socket = await self._connected()
        try:
            # One deadline for sending and the whole answer, however slowly either goes.
            async with asyncio.timeout(self._timeout):
                # A server that takes nobody in says why and hangs up; its reason can be read when nothing can be sent.
                with contextlib.suppress(ConnectionClosed):
                    await socket.send(message)
                return await socket.recv()
        except TimeoutError as error:
            await self._drop()
            raise UnreachableError(f"{self._url} did not answer for {self._timeout:g} s") from error
        except (WebSocketException, OSError) as error:
            await self._drop()
            raise ClosedError(f"{self._url} has closed the connection: {printable(error)}") from error

    async def _drop(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.transport.abort()
