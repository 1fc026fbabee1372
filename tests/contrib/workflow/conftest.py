"""What the tests against chat servers share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chat_server import Server, needs_server, tiny_model
from night import by_night
from parrot_server import ParrotServer


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def real_server(chat_model: Path, tmp_path: Path) -> Iterator[Server]:
    """A server that runs, and is killed when the test is over."""
    one = Server(chat_model, tmp_path / "server.log")
    one.start()
    yield one
    one.kill()


@pytest.fixture
def parrot() -> Iterator[ParrotServer]:
    """A server that costs next to nothing, likewise."""
    one = ParrotServer()
    one.start()
    yield one
    one.kill()


@pytest.fixture(params=["parrot", pytest.param("real_server", marks=[*by_night, needs_server])])
def server(request: pytest.FixtureRequest) -> Server | ParrotServer:
    """By day the cheap one, by night the real one as well."""
    return request.getfixturevalue(str(request.param))
