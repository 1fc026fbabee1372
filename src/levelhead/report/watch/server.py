"""The server of the live page: fixed addresses, read-only, for one machine unless a key is set.

No address is a path of the file system: pages come from the package, and everything else is asked of the runs that
were named when the server began.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from ipaddress import ip_address
from socketserver import TCPServer
from types import MappingProxyType
from typing import Any, Protocol, get_args
from urllib.parse import parse_qs, urlsplit

from levelhead import extensions
from levelhead.diagnosis.chinese import Words, said
from levelhead.diagnosis.findings import Language
from levelhead.diagnosis.notice import message_of
from levelhead.documents import dump_json
from levelhead.documents.plotly import plotly_script
from levelhead.errors import InputError
from levelhead.records import ActionKind
from levelhead.report.language import Translator, own_words
from levelhead.report.markup import json_for_script
from levelhead.report.watch.rollouts import Filter
from levelhead.report.watch.run import WatchedRun, differences

KEY_VARIABLE = "LEVELHEAD_WATCH_KEY"
"""Environment variable of the key without which no other machine is served."""
SHORTEST_KEY = 16
"""Characters of a key at least."""
MOST_SERIES = 200
"""Curves that one request may ask for."""

_COOKIE = "levelhead-watch"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Query = dict[str, list[str]]


class Player(Protocol):
    """Plays episodes of a kind again: what an entry of ``levelhead.players`` makes."""

    def can_play(self, row: Mapping[str, Any]) -> bool:
        """Whether a rollout is such an episode, and what plays it is installed."""
        ...

    def play(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the pictures of an episode.

        Raises:
            InputError: It cannot be played.
        """
        ...


class _Refusal(Exception):  # noqa: N818 - it carries an answer, and nothing is wrong with the server
    def __init__(self, status: HTTPStatus, said: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(said)
        self.status, self.headers = status, headers


class WatchServer(ThreadingHTTPServer):
    """A server of the live page of some runs.

    Args:
        runs: In the order of the page.
        host: Address to listen on.
        port: 0 takes a free one; :attr:`server_port` says which.
        key: What a browser must show; needed where ``host`` is not of this machine alone.
        language: Of the page's own words and of the findings.

    Raises:
        InputError: The port is taken, the host is none of this machine's, or a key is missing or too short.
    """

    daemon_threads = True

    def __init__(
        self,
        runs: Sequence[WatchedRun],
        host: str = "127.0.0.1",
        port: int = 0,
        key: str = "",
        language: Language = "en",
    ) -> None:
        local = _is_local(host)
        if not local and not key:
            raise InputError(
                f"--host {host}: other machines could read the runs; set {KEY_VARIABLE} to a secret of your own first"
            )
        if key and len("".join(key.split())) < SHORTEST_KEY:
            raise InputError(
                f"{KEY_VARIABLE}: has {len(''.join(key.split()))} characters beside blanks, and a key needs "
                f"{SHORTEST_KEY} or more"
            )
        self.runs, self.language = list(runs), language
        self.players: list[Player] = [make() for make in extensions.load_all("players").values()]
        self.key = key
        self.token = hashlib.sha256(b"levelhead watch\0" + key.encode()).hexdigest() if key else ""
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            reason = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror or error})"
            raise InputError(f"port {port} of {host} {reason}; choose another --port") from error
        names = {self._name, "127.0.0.1", "localhost"}
        self.hosts = {f"{name}:{self.server_port}" for name in names} | (names if port == 80 else set())

    @property
    def url(self) -> str:
        """The page's address on this server."""
        return f"http://{self._name}:{self.server_port}/"

    @property
    def _name(self) -> str:
        return f"[{self.server_name}]" if ":" in self.server_name else self.server_name

    def server_bind(self) -> None:
        """Bind without looking up the machine's name, which may wait for a network that is not there."""
        TCPServer.server_bind(self)  # HTTPServer's own asks the resolver; what it would set is set here
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing where a browser closed a connection; its own handler answers everything else."""


def serve(server: WatchServer) -> None:
    """Serve until interrupted with Ctrl-C."""
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    protocol_version = "HTTP/1.1"
    server_version = "levelhead"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        try:
            try:
                address = urlsplit(self.path)
            except ValueError:
                raise _Refusal(HTTPStatus.BAD_REQUEST, "that is no address") from None
            self._admit(address.query)
            kind, body = self._content(address.path, parse_qs(address.query, max_num_fields=MOST_SERIES + 20))
            self._send(HTTPStatus.OK, kind, body)
        except _Refusal as refusal:
            self._send(refusal.status, "text/plain; charset=utf-8", f"{refusal}\n".encode(), refusal.headers)
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception as error:
            # A damaged run must not end the page: what could not be read is said there.
            message = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", f"{message}\n".encode())

    do_HEAD = do_GET  # noqa: N815 - the standard library's name

    def log_message(self, *_: Any) -> None:
        """Say nothing: the terminal is the user's."""

    def _admit(self, query: str) -> None:
        """Refuse a request of another site, one that names another host (DNS rebinding), and one that lacks the key.

        Where there is a key it is what admits: a page of another origin does not have this one's cookie.
        """
        server = self.server
        if self.headers.get("Sec-Fetch-Site", "none") == "cross-site":
            raise _Refusal(HTTPStatus.FORBIDDEN, "this address is not served to other sites")
        if not server.key:
            if self.headers.get("Host", "").lower() not in server.hosts:
                raise _Refusal(HTTPStatus.FORBIDDEN, "this address is not served under that name")
            return
        shown = parse_qs(query, max_num_fields=MOST_SERIES + 20).get("key", [""])[0]
        if shown and hmac.compare_digest(shown.encode(), server.key.encode()):
            # The browser gets a cookie, and an address without the key.
            cookie_text = f"{_COOKIE}={server.token}; HttpOnly; SameSite=Strict; Path=/"
            raise _Refusal(HTTPStatus.SEE_OTHER, "", {"Location": "/", "Set-Cookie": cookie_text})
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(_COOKIE)
        except CookieError:
            cookie = None
        if cookie is None or not hmac.compare_digest(cookie.value.encode(), server.token.encode()):
            raise _Refusal(HTTPStatus.UNAUTHORIZED, f"open the page with ?key= and the value of {KEY_VARIABLE}")

    def _content(self, path: str, query: Query) -> tuple[str, bytes]:
        """Return the type of a page, and the page."""
        language = self.server.language
        if path == "/words.js":
            return "text/javascript; charset=utf-8", _words(language)
        if path == "/plotly.js":
            return "text/javascript; charset=utf-8", plotly_script().encode()
        if path in _FILES:
            kind, *names = _FILES[path]
            body = b"".join(files("levelhead.report").joinpath(name).read_bytes() for name in names)
            body = Translator(language).page(body.decode()).encode() if path == "/" else body
            return f"text/{kind}; charset=utf-8", body
        answer = _ANSWERS.get(path)
        if answer is None:
            raise _Refusal(HTTPStatus.NOT_FOUND, "there is no such page")
        return "application/json", dump_json(answer(self.server, query)).encode()

    def _send(self, status: HTTPStatus, kind: str, body: bytes, more: Mapping[str, str] = MappingProxyType({})) -> None:
        try:
            self.send_response(status)
            for name, value in {**_HEADERS, **more}.items():
                self.send_header(name, value)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            # The drawing library is large and stays; everything else is new each time.
            lasting = status == HTTPStatus.OK and self.path.startswith("/plotly.js?")
            self.send_header("Cache-Control", "private, max-age=86400" if lasting else "no-store")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
        except OSError:
            self.close_connection = True


def _state(server: WatchServer, _: Query) -> Any:
    states = []
    for run in server.runs:
        with run.lock:
            run.look()
            states.append(run.state())
    return {"runs": states}


def _series(server: WatchServer, query: Query) -> Any:
    """New points of curves; each ``c`` is stage, epoch, count and name, with blanks between."""
    run, curves = _run(server, query), query.get("c", [])
    if len(curves) > MOST_SERIES:
        raise _Refusal(HTTPStatus.BAD_REQUEST, f"c: at most {MOST_SERIES} curves in one request")
    answers = []
    with run.lock:
        for asked in curves:
            stage, epoch, count, name = [*asked.split(" ", 3), "", "", "", ""][:4]
            points = run.curves.since(stage, name, _whole(epoch), _whole(count))
            if points is not None and (points["steps"] or points["start"] != _whole(count)):
                answers.append({"stage": stage, "name": name, **points})
    return {"series": answers}


def _events(server: WatchServer, query: Query) -> Any:
    run = _run(server, query)
    with run.lock:
        news = run.events(_whole(_one(query, "epoch")), _whole(_one(query, "count")))
    if server.language == "en":
        return news
    return {**news, "events": [{**event, "message": message_of(event, "zh")} for event in news["events"]]}


def _words(language: Language) -> bytes:
    """The page's own words in a language, for what its scripts write."""
    own = own_words() if language == "zh" else Words({"phrases": {}, "patterns": {}})
    patterns = {pattern.pattern: text for pattern, text in own.patterns.items()}
    actions = {name: said(name) for name in get_args(ActionKind)} if language == "zh" else {}
    words = {"phrases": {**actions, **own.phrases}, "patterns": patterns}
    return f'"use strict";\nconst WATCH_WORDS = {json_for_script(words)};\n'.encode()


def _rollouts(server: WatchServer, query: Query) -> Any:
    run = _run(server, query)
    wanted = Filter(
        kind=_one(query, "kind"),
        task=_one(query, "task"),
        stratum=_one(query, "stratum"),
        text=_one(query, "text")[:500],
        steps=(_bound(query, "step_from"), _bound(query, "step_to")),
        rewards=(_bound(query, "reward_from"), _bound(query, "reward_to")),
    )
    file = _one(query, "file")
    with run.browsing:
        return run.rollouts.page(wanted, (file, _whole(_one(query, "line"))) if file else None)


def _group(server: WatchServer, query: Query) -> Any:
    """A prompt's rollouts; a workflow comes with its drawing, an episode that can be played again says so."""
    run = _run(server, query)
    with run.browsing:
        rows = run.rollouts.group(_one(query, "file"), _one(query, "task"), _one(query, "prompt"))
    for row in rows:
        row["drawing"] = _drawing(row.get("info"))
        row["episode"] = any(player.can_play(row) for player in server.players)
    return {"rows": rows}


def _drawing(info: Any) -> Any:
    """The drawing of a text in a score's ``info``, by the first package that draws one; ``None`` without."""
    texts = info if isinstance(info, dict) else {}
    drawn = (extensions.load("drawings", key)(texts[key]) for key in extensions.names("drawings") if key in texts)
    return next((drawing for drawing in drawn if drawing is not None), None)


def _pages(server: WatchServer, query: Query) -> Any:
    """The pictures of an episode, which is played for them: one at a time, and the last few are remembered."""
    run, file, line = _run(server, query), _one(query, "file"), _whole(_one(query, "line"))
    with run.browsing:
        row = run.rollouts.rollout(file, line)
    player = next((one for one in server.players if row is not None and one.can_play(row)), None)
    if row is None or player is None:
        raise _Refusal(HTTPStatus.NOT_FOUND, "there is no such episode, or what plays it is not installed")
    try:
        return player.play(row)
    except (InputError, TimeoutError) as error:
        message = str(error) or "the episode took too long"
        raise _Refusal(HTTPStatus.SERVICE_UNAVAILABLE, message.splitlines()[0]) from error


def _run(server: WatchServer, query: Query) -> WatchedRun:
    number = _whole(_one(query, "run"))
    if not 0 <= number < len(server.runs):
        raise _Refusal(HTTPStatus.NOT_FOUND, "there is no such run")
    return server.runs[number]


def _one(query: Query, key: str) -> str:
    return query.get(key, [""])[0]


def _whole(text: str) -> int:
    """A whole number of an address; -1 where it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1


def _bound(query: Query, key: str) -> float | None:
    text = _one(query, key)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _Refusal(HTTPStatus.BAD_REQUEST, f"{key}: is no number")
    return value


def _is_local(host: str) -> bool:
    """Whether an address is of this machine alone."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


_FILES = {
    "/": ("html", "watch/page.html"),
    "/page.js": ("javascript", "watch/page.js"),
    "/curves.js": ("javascript", "watch/curves.js"),
    "/episodes.js": ("javascript", "watch/episodes.js"),
    "/rollouts.js": ("javascript", "watch/rollouts.js"),
    "/page.css": ("css", "style.css", "watch/page.css"),
}
"""Type of each page that is files of the package, and the files."""
_ANSWERS: dict[str, Callable[[WatchServer, Query], Any]] = {
    "/api/state": _state,
    "/api/series": _series,
    "/api/events": _events,
    "/api/findings": lambda server, query: _run(server, query).findings(server.language),
    "/api/recipes": lambda server, _: {
        "runs": [run.recipes() for run in server.runs],
        "differences": differences(server.runs),
    },
    "/api/rollouts": _rollouts,
    "/api/group": _group,
    "/api/pages": _pages,
}
