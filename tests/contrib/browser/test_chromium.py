from __future__ import annotations

from pathlib import Path

import pytest

from levelhead.contrib.browser import host
from levelhead.contrib.browser.host import ENVIRONMENT_VARIABLE, find_chromium
from levelhead.errors import InputError


def program(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(host, "_MAC", ())
    return tmp_path


def test_the_recipe_wins_over_environment_bundle_and_path(nothing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = program(nothing / "bin", "chromium")
    bundled, by_environment, named = (program(nothing, name) for name in ("bundled", "environment", "named"))
    assert find_chromium() == on_path
    assert find_chromium(None, str(bundled)) == bundled
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(by_environment))
    assert find_chromium(None, str(bundled)) == by_environment
    assert find_chromium(str(named), str(bundled)) == named


def test_a_bundle_that_is_not_installed_is_passed_over(nothing: Path) -> None:
    on_path = program(nothing / "bin", "google-chrome")
    assert find_chromium(None, str(nothing / "absent")) == on_path


def test_no_browser_says_how_to_get_one(nothing: Path) -> None:
    with pytest.raises(InputError, match=r"no Chromium found.*apt-get install -y --no-install-recommends chromium"):
        find_chromium()


def test_a_named_browser_that_is_not_there_is_an_error(nothing: Path) -> None:
    program(nothing / "bin", "chromium")
    with pytest.raises(InputError, match=r"tasks\[\]\.executable is /absent"):
        find_chromium("/absent")


async def test_a_driver_that_does_not_start_is_an_error_that_says_what_to_look_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Driver:
        async def start(self) -> None:
            raise Exception("Connection closed while reading from the driver")

    monkeypatch.setattr(host, "async_playwright", Driver)
    with pytest.raises(InputError, match=r"driver does not start: Connection closed .*libatomic1"):
        await host.Host.start(None, lambda *_: None)


def test_the_program_behind_debians_wrapper_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.os, "access", lambda path, _: str(path) == "/usr/lib/chromium/chromium-headless-shell")
    assert str(host.real_binary(Path("/usr/bin/chromium-headless-shell"))) == (
        "/usr/lib/chromium/chromium-headless-shell"
    )
    assert str(host.real_binary(Path("/usr/bin/google-chrome"))) == "/usr/bin/google-chrome"
