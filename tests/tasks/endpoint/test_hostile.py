"""Calls to a real server on this machine that does its worst: they end, within bounds, and say what happened."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import random
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from hostile_server import Behaviour, Connection, HostileServer, completion, serving
from levelhead.errors import InputError
from levelhead.recipe.judge import Judge
from levelhead.tasks.endpoint import ChatClient, EndpointError, Reply, ReplyCache
from levelhead.tasks.endpoint.exchange import BYTES_A_TOKEN, BYTES_BESIDE_TEXT, Exchange, FailedAttemptError
from levelhead.tasks.endpoint.wire import NoCompletionError, read_reply
from levelhead.tasks.metering import Usage
from levelhead.waiting import all_of

KIB, MIB = 1024, 1024 * 1024
CAP = BYTES_BESIDE_TEXT + 16 * BYTES_A_TOKEN
"""Bytes of a reply that are read at most with the section of these tests."""
IN_FLIGHT = 12 * MIB
"""Bytes that the buffers of two sockets may hold beyond what the client has read."""


def section(server: HostileServer, **keys: object) -> Judge:
    base = {"base_url": server.url, "model": "m", "max_tokens": 16, "backoff_s": 0.02, "timeout_s": 5, "patience_s": 0}
    return Judge.model_validate({**base, **keys})


def ask(server: HostileServer, *texts: str, usage: Usage | None = None, **keys: object) -> list[Reply]:
    """Ask all texts at once, by one client."""

    async def all_texts() -> list[Reply]:
        async with ChatClient(section(server, **keys), usage if usage is not None else Usage()) as client:
            return await all_of(
                client.ask([{"role": "user", "content": text}], 0.0, text) for text in texts or ("hello",)
            )

    return asyncio.run(all_texts())


def outage(behave: Behaviour, **keys: object) -> tuple[HostileServer, str]:
    """Ask a server that gives no reply; returns it and what the error says."""
    with serving(behave) as server, pytest.raises(EndpointError) as raised:
        ask(server, **keys)
    assert raised.value.cause == "outage"
    assert str(raised.value).isprintable()
    return server, str(raised.value)


@pytest.mark.parametrize("header", ["0", "-5", "-1e9", "nan", "soon", "Thu, 01 Jan 1970 00:00:00 GMT", "", None])
def test_no_retry_after_makes_calls_hammer(header: str | None) -> None:
    """Waits of at least 0.05, 0.1, 0.2 s: four attempts at most begin in 0.3 s of patience, and one at its end."""
    headers = [] if header is None else [f"Retry-After: {header}"]
    server, _ = outage(lambda one: one.reply(b"", "429 No", *headers), backoff_s=0.1, patience_s=0.3)
    assert 1 <= server.requests <= 5


@pytest.mark.parametrize("header", ["86400", "999999999", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_huge_retry_after_is_cut_to_the_patience_that_is_left(header: str) -> None:
    """One attempt, one wait until patience ends, one last attempt."""
    server, _ = outage(lambda one: one.reply(b"", "429 No", f"Retry-After: {header}"), patience_s=1)
    assert server.requests == 2


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        lambda: itertools.chain([HEAD], itertools.repeat(b"1\r\n \r\n")),
        lambda: itertools.chain([b"HTTP/1.1 200 OK\r\n"], itertools.repeat(b"X-More: 1\r\n")),
        lambda: itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n"),
        lambda: itertools.chain([b"HTTP/1.1 503 Busy\r\nContent-Length: 99999\r\n\r\n"], itertools.repeat(b"x")),
        lambda: itertools.chain([b"HTTP/1.0 200 OK\r\n\r\n"], itertools.repeat(b" ")),
        lambda: itertools.repeat(b""),
    ],
    ids=["body", "headers", "interim", "error-body", "http-1.0", "silence"],
)
def test_a_reply_that_drips_for_ever_ends_at_the_deadline(pieces: Callable[[], itertools.chain[bytes]]) -> None:
    """Each piece comes well within any time-out between pieces; four attempts are over in less than 10,000 pieces."""
    server, said = outage(lambda one: one.drip(pieces(), 0.01), timeout_s=0.2, patience_s=0.3)
    assert 1 <= server.requests <= 4
    assert "no complete reply within 0.2 s" in said or "HTTP 503" in said


def test_an_endless_body_is_read_up_to_the_cap_and_no_further() -> None:
    chunk = f"{64 * KIB:x}\r\n".encode() + b" " * 64 * KIB + b"\r\n"
    endless = itertools.chain([HEAD], itertools.repeat(chunk))
    server, said = outage(lambda one: one.drip(endless, 0))
    assert f"more than {CAP} bytes" in said
    assert server.requests == 1
    assert server.sent < CAP + IN_FLIGHT


def bomb(size: int, links: int) -> bytes:
    """Blanks, packed so many times."""
    one = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    packed = b"".join([*(one.compress(b" " * MIB) for _ in range(size // MIB)), one.flush()])
    for _ in range(links - 1):
        packed = gzip.compress(packed)
    return packed


@pytest.mark.parametrize("links", [1, 2])
def test_a_bomb_is_unpacked_up_to_the_cap_and_no_further(links: int, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, unpacked = bomb(64 * MIB, links), []
    decompressobj = zlib.decompressobj

    class Counting:
        """Unpacks, and remembers how much."""

        def __init__(self, *bits: int) -> None:
            self.inner = decompressobj(*bits)

        def decompress(self, data: bytes, *most: int) -> bytes:
            unpacked.append(len(out := self.inner.decompress(data, *most)))
            return out

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    coding = f"Content-Encoding: {', '.join(['gzip'] * links)}"
    _, said = outage(lambda one: one.reply(packed, "200 OK", coding))
    assert f"more than {CAP} bytes" in said if links == 1 else "gzip, gzip, which was not asked for" in said
    assert sum(unpacked) < CAP + 4 * MIB


def test_a_packed_reply_is_read() -> None:
    with serving(lambda one: one.reply(gzip.compress(completion("packed")), "200 OK", "Content-Encoding: gzip")) as one:
        assert ask(one) == [Reply("packed", 7, 2)]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "an empty body"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "HTTP 204 with a reply that is no chat completion: an empty body"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + completion(), "RemoteProtocolError"),
        (HEAD + b"20\r\n" + completion()[:32] + b"\r\n", "RemoteProtocolError"),
        (HEAD + b"zz\r\n", "RemoteProtocolError"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + completion()[:-9], "no chat completion"),
        (b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n<h1>It works!</h1>", "type text/html that is no chat"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 3\r\n\r\nabc", "compressed as br"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", "DecodingError"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "RemoteProtocolError"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n", "RemoteProtocolError"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "RemoteProtocolError"),
        (b"\x00\xff" * 100, "RemoteProtocolError"),
        (b"", "disconnected"),
        (b"HTTP/1.1 529 Overloaded\r\nContent-Length: 4\r\n\r\nlate", "HTTP 529: late"),
        (b"HTTP/1.1 500 \x1b[2J\r\nContent-Length: 8\r\n\r\n\x1b[31mred", "HTTP 500: red"),
    ],
)
def test_what_is_no_reply_is_named_and_asked_for_again(answer: bytes, says: str) -> None:
    """The first request gets it, the second a reply: nothing is lost."""
    replies = iter([answer, None])

    def behave(one: Connection) -> None:
        once = next(replies)
        if once is None:
            one.reply(completion())
        else:
            one.write(once)

    usage = Usage()
    with serving(behave) as server:
        assert ask(server, usage=usage, patience_s=5) == [Reply("fine", 7, 2)]
    assert (server.requests, usage.calls, usage.retries) == (2, 1, 1)
    silent, back = usage.take_news()
    assert says in silent
    assert silent.isprintable()
    assert "answers again" in back


def test_an_error_of_megabytes_is_quoted_and_not_read() -> None:
    body = b"out of memory " + b"x" * 64 * MIB
    server, said = outage(lambda one: one.reply(body, "500 Oops"))
    assert "HTTP 500: out of memory xxx" in said
    assert len(said) < 600
    assert server.sent == 0  # the client hung up in the middle of the body


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
def test_a_redirect_is_refused_and_the_key_goes_nowhere_else(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTILE_KEY", "sk-secret-123")
    with (
        serving(lambda one: one.reply(completion())) as other,
        serving(lambda one: one.reply(b"", status, f"Location: {other.url}/chat/completions")) as server,
        pytest.raises(EndpointError) as raised,
    ):
        ask(server, api_key_env="HOSTILE_KEY", patience_s=5)
    assert raised.value.cause == "refusal"
    assert f"sends calls on to {other.url}" in str(raised.value)
    assert (server.requests, other.requests) == (1, 0)
    assert server.connections[0].headers["authorization"] == "Bearer sk-secret-123"


def test_a_key_that_is_echoed_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTILE_KEY", "sk-secret-123")

    def echo(one: Connection) -> None:
        one.reply(f"\x1b]0;title\x07no entry: {one.headers['authorization']}".encode(), "401 Unauthorized")

    with serving(echo) as server, pytest.raises(EndpointError) as raised:
        ask(server, api_key_env="HOSTILE_KEY")
    assert raised.value.cause == "authentication"
    assert "HTTP 401: no entry: Bearer [key]" in str(raised.value)


@pytest.mark.parametrize("key", ["sk-1\nX-Injected: yes", "schlüssel", "\x00", "  "])
def test_a_key_that_no_header_can_hold_is_bad_input(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {"HOSTILE_KEY": key})
    with pytest.raises(InputError, match="tasks\\[\\]\\.executor\\.api_key_env names HOSTILE_KEY"):
        ChatClient(Judge(base_url="http://127.0.0.1:9/v1", model="m", api_key_env="HOSTILE_KEY"), Usage())


@pytest.mark.parametrize("url", ["http://", "http://[", "http:///v1", "https://a b", "http://h:99999999/v1"])
def test_a_url_that_is_none_is_bad_input(url: str) -> None:
    with pytest.raises(InputError, match="base_url"):
        ChatClient(Judge(base_url=url, model="m"), Usage())


def test_cookies_are_not_kept() -> None:
    with serving(lambda one: one.reply(completion(), "200 OK", "Set-Cookie: a=b; Path=/")) as server:
        ask(server, "one", "two", concurrency=1)
    assert ["cookie" in one.headers for one in server.connections] == [False, False]


def test_one_refusal_ends_the_batch_and_nobody_else_asks_or_waits() -> None:
    """Of fifty calls by two at a time, one is refused while another waits for its next attempt: 48 are never made."""

    def behave(one: Connection) -> None:
        first = json.loads(one.body)["messages"][0]["content"] == "0"
        one.reply(b"", "503 Busy" if first else "400 Bad", *(["Retry-After: 100"] if first else []))

    with serving(behave) as server, pytest.raises(EndpointError, match="HTTP 400"):
        ask(server, *map(str, range(50)), concurrency=2, patience_s=1000)
    assert server.requests <= 3


def test_an_outage_ends_the_batch_once_and_not_once_a_call() -> None:
    """Twenty calls by two at a time, patience for three attempts each: the first two calls speak for all."""
    with serving(lambda one: one.reply(b"", "503 Busy")) as server, pytest.raises(EndpointError, match="HTTP 503"):
        ask(server, *map(str, range(20)), concurrency=2, backoff_s=0.2, patience_s=0.3)
    assert server.requests <= 10


def test_a_call_that_alone_gets_no_reply_ends_too() -> None:
    """The others are answered without end, which keeps the endpoint alive, but not this call for ever."""

    def behave(one: Connection) -> None:
        poisoned = "poison" in json.loads(one.body)["messages"][0]["content"]
        one.reply(b"[]" if poisoned else completion())

    async def keep_asking(server: HostileServer) -> None:
        async with ChatClient(section(server, patience_s=0.8, backoff_s=0.1), Usage()) as client:
            poison = asyncio.create_task(client.ask([{"role": "user", "content": "poison"}], 0.0, "p"))
            for i in range(1000):
                if poison.done():
                    break
                await client.ask([{"role": "user", "content": str(i)}], 0.0, str(i))
                await asyncio.sleep(0.01)
            await poison

    with serving(behave) as server, pytest.raises(EndpointError, match=r"no reply to one call for .*JSON list"):
        asyncio.run(keep_asking(server))
    poisoned = sum(b"poison" in one.body for one in server.connections)
    assert 2 <= poisoned <= 20
    assert server.requests > poisoned


def test_an_endpoint_that_comes_and_goes_fills_no_list_of_news() -> None:
    """Forty calls, of which each fails once: news of the first few, and how many more."""

    def behave(one: Connection) -> None:
        if one.number % 2:
            one.reply(completion())
        else:
            one.reply(b"", "429 Slow Down")

    usage = Usage()
    with serving(behave) as server:
        assert len(ask(server, *map(str, range(40)), usage=usage, concurrency=1, patience_s=9, backoff_s=0.001)) == 40
    news = usage.take_news()
    assert len(news) == 17
    assert news[-1] == "64 more lines like these"
    assert (usage.calls, usage.retries, usage.take_news()) == (40, 40, [])


PIECES = (
    *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204 No Content\r\n"),
    *(
        b"HTTP/1.1 500 Oops\r\n",
        b"HTTP/1.1 429 No\r\n",
        b"HTTP/1.1 302 Found\r\n",
        b"HTTP/9.9 999 \xff\r\n",
        b"ICY 200\r\n",
    ),
    *(b"Content-Length: 0\r\n", b"Content-Length: 9\r\n", b"Content-Length: 99999999999999999999\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Connection: keep-alive\r\n"),
    *(b"Content-Encoding: gzip\r\n", b"Content-Encoding: deflate\r\n", b"Content-Encoding: zstd\r\n"),
    *(b"Content-Type: text/html; charset=zlib\r\n", b"Content-Type: application/json; charset=utf-7\r\n"),
    *(b"Retry-After: 0\r\n", b"Location: http://127.0.0.1:1/\r\n", b"Location: //[\r\n", b"Set-Cookie: a=b\r\n"),
    *(b"X: \x00\r\n", b" folded\r\n", b"\xc3\xa9: 1\r\n", b": none\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r"),
    *(b"ffffffffffffffff\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"-1\r\n", b"{}", b"[" * 5000, b"\xff\xfe", b"null"),
    *(completion(), gzip.compress(completion()), zlib.compress(completion()), completion()[:40]),
)


def test_any_answer_at_all_is_a_reply_a_failed_attempt_or_a_refusal() -> None:
    """Four hundred answers put together at random: one request each, and no other exception than the documented."""
    rng, ends = random.Random(0), Counter[str]()
    answers: list[bytes] = []
    for i in range(400):
        head = [PIECES[rng.choice([0, 0, 0, 1, 1, 1, 2, 3, 6])], rng.choice(PIECES[10:20]), b"\r\n"] if i % 2 else []
        rest = rng.choices(PIECES[-4:], k=1) if i % 4 == 1 else rng.choices(PIECES, k=rng.randint(1, 6))
        answers.append(b"".join([*head, *rest]))

    async def one(exchange: Exchange, body: bytes) -> str:
        try:
            response = await exchange.post("chat/completions", body)
            if not response.good:
                return "refusal"
            read_reply(response.body, {"messages": [], "max_tokens": 16}).text.encode()
        except FailedAttemptError as error:
            return f"failed: {error}"
        except NoCompletionError as error:
            return f"unreadable: {error}"
        return "reply"

    async def every(server: HostileServer) -> None:
        async with Exchange(section(server), "judge") as exchange:
            for i in range(len(answers)):
                end = await one(exchange, str(i).encode())
                assert end.isprintable(), end
                ends[end.partition(":")[0]] += 1

    with serving(lambda one: one.write(answers[int(one.body)])) as server:
        asyncio.run(every(server))
    assert server.requests <= ends.total() == 400
    assert min(ends[end] for end in ("reply", "refusal", "failed", "unreadable")) > 5, ends


def test_lone_surrogates_neither_leave_nor_enter(tmp_path: Path) -> None:
    cache = ReplyCache(tmp_path / "replies.sqlite")

    async def one(server: HostileServer) -> Reply:
        async with ChatClient(section(server), Usage(), cache) as client:
            return await client.ask([{"role": "user", "content": "a \ud800 b"}], 0.0, "s")

    body = completion("x").replace(b'"x"', b'"\\ud83d\\ude00 \\udc00"')
    with serving(lambda one: one.reply(body)) as server:
        reply = asyncio.run(one(server))
        assert asyncio.run(one(server)) == reply == Reply("\U0001f600 \ufffd", 7, 2)
    assert server.requests == 1
    assert json.loads(server.connections[0].body)["messages"][0]["content"] == "a \ufffd b"


def test_a_cache_that_fails_costs_no_reply(tmp_path: Path) -> None:
    """The file is emptied under the run: replies are used all the same, and somebody is told once."""
    path = tmp_path / "replies.sqlite"
    cache, usage = ReplyCache(path), Usage()
    cache._db.execute("DROP TABLE replies")

    async def both(server: HostileServer) -> list[Reply]:
        async with ChatClient(section(server), usage, cache) as client:
            return await all_of(client.ask([{"role": "user", "content": text}], 0.0, text) for text in "ab")

    with serving(lambda one: one.reply(completion())) as server:
        assert asyncio.run(both(server)) == [Reply("fine", 7, 2)] * 2
    (told,) = usage.take_news()
    assert "replies.sqlite: cannot be read" in told
    assert "cache is not used for this batch" in told
