"""The server of the live page answers fixed addresses, to this machine's own name or to whoever has the key."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from levelhead.errors import InputError
from levelhead.report.watch import WatchServer
from levelhead.report.watch.run import find_runs
from synthetic_run import EVIL, write_run

KEY = "a key of my own, long enough"


@contextmanager
def serving(folder: Path, host: str = "127.0.0.1", key: str = "") -> Iterator[WatchServer]:
    server = WatchServer(find_runs([folder]), host, 0, key)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchServer]:
    with serving(write_run(tmp_path_factory.mktemp("runs") / "run", steps=40)) as started:
        yield started


def request(server: WatchServer, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def ask(server: WatchServer, path: str, **query: Any) -> Any:
    answer, body = request(server, f"{path}?{urlencode(query, doseq=True)}")
    assert answer.status == 200, body
    return json.loads(body)


def test_a_growing_run_is_sent_bit_by_bit(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=20)
    with serving(folder) as own:
        assert ask(own, "/api/state")["runs"][0]["step"] == 20
        first = ask(own, "/api/series", run=0, c="grpo 0 0 reward")["series"][0]
        assert first["steps"] == list(range(1, 21))
        asked = f"grpo {first['epoch']} 20 reward"
        assert ask(own, "/api/series", run=0, c=asked)["series"] == []
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 21, "stage": "grpo", "reward": "nan"}\n')
        ask(own, "/api/state")
        news = ask(own, "/api/series", run=0, c=asked)["series"][0]
        assert (news["start"], news["steps"], news["values"]) == (20, [21], [None])


def test_what_a_model_wrote_leaves_as_json_and_never_as_a_page(server: WatchServer) -> None:
    answer, body = request(server, "/api/rollouts?run=0&kind=eval")
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    row = next(row for row in json.loads(body)["rows"] if row["prompt_id"].endswith("0001"))
    group = ask(server, "/api/group", run=0, file=row["file"], task=row["task"], prompt=row["prompt_id"])["rows"]
    assert EVIL in group[0]["completion"]


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/page.js/../run.py", "/run.py", "/api/",
        "/api/../recipe.yaml", "/recipe.yaml", "/\\..\\recipe.yaml", "/page.html%00",
    ],
)  # fmt: skip
def test_no_address_is_a_path(server: WatchServer, path: str) -> None:
    answer, body = request(server, path)
    assert answer.status == 404
    assert body == b"there is no such page\n"


@pytest.mark.parametrize("name", ["../recipe.yaml", "../metrics.jsonl", "/etc/passwd", "..", "", "eval-grpo.jsonl.gz/"])
def test_a_file_that_is_none_of_the_rollouts_is_not_read(server: WatchServer, name: str) -> None:
    assert ask(server, "/api/group", run=0, file=name, task="fairness", prompt="fairness-0001") == {"rows": []}


@pytest.mark.parametrize("run", ["1", "-1", "x", "", "9" * 40, "\u0661"])
def test_a_run_that_is_not_on_the_page_is_refused(server: WatchServer, run: str) -> None:
    assert request(server, f"/api/findings?run={quote(run)}")[0].status == 404


def test_a_bound_that_is_no_number_is_refused(server: WatchServer) -> None:
    answer, body = request(server, "/api/rollouts?run=0&reward_from=nan")
    assert (answer.status, body) == (400, b"reward_from: is no number\n")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", "", "127.0.0.1.evil.example:{port}"]
)
def test_a_request_under_another_name_is_refused(server: WatchServer, host: str) -> None:
    answer, body = request(server, "/api/state", Host=host.format(port=server.server_port))
    assert answer.status == 403
    assert b"runs" not in body


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1"])
def test_this_machines_own_names_are_served(server: WatchServer, host: str) -> None:
    assert request(server, "/api/state", Host=f"{host}:{server.server_port}")[0].status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_the_page_is_only_read(server: WatchServer, method: str) -> None:
    assert request(server, "/api/state", method)[0].status == 501


def test_the_page_may_load_from_nowhere_else(server: WatchServer) -> None:
    answer, body = request(server, "/")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert b"http" not in body


def test_other_machines_need_a_key(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=10)
    with pytest.raises(InputError, match=r"--host 0\.0\.0\.0: other machines .* LEVELHEAD_WATCH_KEY"):
        WatchServer(find_runs([folder]), "0.0.0.0")
    with pytest.raises(InputError, match="5 characters"):
        WatchServer(find_runs([folder]), key="short")


def test_whoever_shows_the_key_gets_a_cookie_and_nobody_else_gets_anything(tmp_path: Path) -> None:
    with serving(write_run(tmp_path / "run", steps=10), "0.0.0.0", KEY) as own:
        for path in ("/", "/api/state", "/?key=wrong", "/plotly.js?v=1"):
            assert request(own, path)[0].status == 401
        assert request(own, "/api/state", Cookie="levelhead-watch=wrong")[0].status == 401
        answer, _ = request(own, f"/?key={quote(KEY)}")
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly; SameSite=Strict" in cookie
        assert KEY not in cookie
        assert request(own, "/api/state", Cookie=cookie.split(";")[0])[0].status == 200


def test_a_port_that_is_taken_is_said(server: WatchServer) -> None:
    with pytest.raises(InputError, match=rf"port {server.server_port} of 127\.0\.0\.1 is taken; choose another --port"):
        WatchServer(server.runs, port=server.server_port)


def test_another_site_gets_nothing(server: WatchServer) -> None:
    for path in ("/api/state", "/api/pages?run=0&file=eval-grpo.jsonl.gz&line=0", "/"):
        assert request(server, path, **{"Sec-Fetch-Site": "cross-site"})[0].status == 403
        assert request(server, path, **{"Sec-Fetch-Site": "same-origin"})[0].status in (200, 404)


def test_what_is_no_browser_episode_is_never_played(server: WatchServer) -> None:
    for file, line in (("eval-grpo.jsonl.gz", 0), ("eval-grpo.jsonl.gz", 10**6), ("../recipe.yaml", 0), ("", -1)):
        answer, body = request(server, f"/api/pages?{urlencode({'run': 0, 'file': file, 'line': line})}")
        assert answer.status == 404, body


def test_rollouts_are_listed_by_stratum(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=10)
    rows = [
        {"step": 99, "task": "t", "prompt_id": str(i), "strata": {"parity": "odd" if i % 2 else "even"}}
        for i in range(6)
    ]
    with gzip.open(folder / "rollouts" / "grpo-000099.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    with serving(folder) as own:
        odd = ask(own, "/api/rollouts", run=0, stratum="parity=odd")
        assert [row["prompt_id"] for row in odd["rows"]] == ["1", "3", "5"]
        assert (odd["matching"], odd["strata"]) == (3, ["parity=even", "parity=odd"])
