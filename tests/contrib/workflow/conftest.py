"""What the tests against a real chat server share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chat_server import Server, tiny_model


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def server(chat_model: Path, tmp_path: Path) -> Iterator[Server]:
    """A server that runs, and is killed when the test is over."""
    one = Server(chat_model, tmp_path / "server.log")
    one.start()
    yield one
    one.kill()
