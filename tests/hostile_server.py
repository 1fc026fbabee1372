"""A chat endpoint in a thread: every answer is what a test says, to the byte, and it counts requests and bytes."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Connection:
    """One request, and the way to answer it.

    Attributes:
        number: Of the request, counted from 0.
        headers: By name in lower case.
        body: As sent.
        sent: Bytes that the client's side has taken of the answer.
        closed: Whether the server is closing down.
    """

    socket: socket.socket
    number: int
    headers: Mapping[str, str]
    body: bytes
    closed: threading.Event
    sent: int = 0

    def write(self, data: bytes) -> bool:
        """Send bytes; returns whether the client still listens."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        self.sent += len(data)
        return True

    def reply(self, body: bytes = b"", status: str = "200 OK", *headers: str) -> None:
        """Send a whole answer."""
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
        self.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)

    def drip(self, pieces: Iterator[bytes], pause_s: float, most: int = 10_000) -> None:
        """Send piece by piece, for as long as the client listens and no longer than the server lives."""
        for _ in range(most):
            if self.closed.is_set() or not self.write(next(pieces)):
                return
            time.sleep(pause_s)


Behaviour = Callable[[Connection], object]


@dataclass(slots=True)
class HostileServer:
    """Listens on a port of its own; every request is a connection of its own.

    Attributes:
        behave: What it does.
        connections: All that it was asked, in order.
    """

    behave: Behaviour
    connections: list[Connection] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        """What a recipe calls ``base_url``."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def requests(self) -> int:
        """Requests so far."""
        return len(self.connections)

    @property
    def sent(self) -> int:
        """Bytes of all answers so far."""
        return sum(one.sent for one in self.connections)


@contextlib.contextmanager
def serving(behave: Behaviour) -> Iterator[HostileServer]:
    """Run a server until the block ends; then no thread of it is left."""
    server, closed, threads = HostileServer(behave), threading.Event(), []

    def answer(one: socket.socket) -> None:
        with one, contextlib.suppress(OSError, ValueError):
            one.settimeout(10)
            connection = _read_request(one, server.requests, closed)
            server.connections.append(connection)
            server.behave(connection)

    def listen(listener: socket.socket) -> None:
        while not closed.is_set():
            try:
                one, _ = listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=answer, args=(one,), daemon=True)
            threads.append(thread)
            thread.start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.port = listener.getsockname()[1]
        threads.append(threading.Thread(target=listen, args=(listener,), daemon=True))
        threads[0].start()
        try:
            yield server
        finally:
            closed.set()
            listener.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(10)


def completion(content: object = "fine", **keys: object) -> bytes:
    """The body of a chat completion."""
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 2}, **keys}).encode()


def _read_request(one: socket.socket, number: int, closed: threading.Event) -> Connection:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = one.recv(65536)
        if not piece:
            raise ValueError("no request")
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lines = [line.partition(": ") for line in head.decode("latin-1").split("\r\n")[1:]]
    headers = {name.lower(): value for name, _, value in lines}
    while len(body) < int(headers.get("content-length", 0)):
        body += one.recv(65536)
    return Connection(one, number, headers, body, closed)
