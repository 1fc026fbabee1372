"""Without a network nobody waits: the hub is asked once, the cache is used, and the error names the ways out."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from levelhead.errors import InputError
from levelhead.policy import hub
from levelhead.policy.load import load_policy
from levelhead.recipe.model import Model
from small_run import TEXTS

TINY = {"hidden_size": 32, "layers": 2, "heads": 2, "kv_heads": 2, "intermediate_size": 48, "vocab_size": 300}
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def unknown_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hub, "_reached", {})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def mirror() -> Iterator[str]:
    """A hub that is up and has nothing."""

    class Empty(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(404)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Empty)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_a_model_that_is_nowhere_is_named_at_once_with_three_ways_to_get_it() -> None:
    start = time.perf_counter()
    with pytest.raises(InputError) as raised:
        load_policy(Model(name="some/model"))
    assert time.perf_counter() - start < hub.PATIENCE_S + 10
    message = str(raised.value)
    assert len(message.splitlines()) == 2
    for part in ("model.name", "some/model", NOWHERE, "local folder", "HF_HOME", "hf auth login"):
        assert part in message


def test_a_hub_that_never_answers_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "PATIENCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.perf_counter()
        assert not hub.reachable()
        assert time.perf_counter() - start < 3


def test_a_cached_model_is_used_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load_policy(Model(preset="tiny", tiny=TINY), texts=TEXTS)
    revision = "0" * 40
    snapshot = tmp_path / "cache" / "models--some--model" / "snapshots" / revision
    policy.save(tmp_path / "model")
    shutil.copytree(tmp_path / "model", snapshot)
    refs = tmp_path / "cache" / "models--some--model" / "refs"
    refs.mkdir()
    (refs / "main").write_text(revision)
    asked: list[str] = []
    monkeypatch.setattr(hub, "_answers", lambda endpoint, patience_s: asked.append(endpoint) or False)
    start = time.perf_counter()
    again = load_policy(Model(name="some/model"))
    assert time.perf_counter() - start < 30
    assert again.codec.stop_ids == policy.codec.stop_ids
    assert asked == [NOWHERE]
    assert constants.HF_HUB_OFFLINE is False


def test_a_mirror_that_answers_is_asked_for_the_model(mirror: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", mirror)
    assert hub.reachable()
    with hub.without_waiting("some/model"):
        assert constants.HF_HUB_OFFLINE is False
    with pytest.raises(InputError, match=r"cannot load 'some/model': no such model\nCheck the name at http://127"):
        hub.load("model.name", "some/model", _missing)


def test_a_folder_needs_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_answers", lambda endpoint, patience_s: pytest.fail("the hub was asked"))
    policy = load_policy(Model(preset="tiny", tiny=TINY), texts=TEXTS)
    policy.save(tmp_path / "model")
    load_policy(Model(name=str(tmp_path / "model")))


def _missing() -> None:
    raise OSError("no such model")
