"""The command that a message gives for more packages is the right one for how Levelhead was installed."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from levelhead.installation import install_command

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").touch()
    return tmp_path / "src" / "levelhead"


def installed(monkeypatch: pytest.MonkeyPatch, origin: str | None) -> None:
    class Distribution:
        def read_text(self, _name: str) -> str | None:
            return origin

    monkeypatch.setattr(metadata, "distribution", lambda _name: Distribution())


def test_a_checkout_is_installed_again_from_where_it_lies(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert install_command("train", checkout) == f"pip install -e '{checkout.parents[1]}[train]'"
    monkeypatch.chdir(checkout.parents[1])
    assert install_command("train", checkout) == "pip install -e '.[train]'"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'levelhead[train]'"),
        ("not JSON", "pip install 'levelhead[train]'"),
        ('{"url": "file:///a/levelhead.whl"}', "pip install 'levelhead[train] @ file:///a/levelhead.whl'"),
        (
            '{"url": "https://a.b/c.git", "vcs_info": {"vcs": "git", "commit_id": "12ab"}}',
            "pip install 'levelhead[train] @ git+https://a.b/c.git@12ab'",
        ),
    ],
)
def test_a_package_is_installed_again_from_where_it_came(
    origin: str | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, origin)
    assert install_command("train", tmp_path / "site-packages" / "levelhead") == command


def test_every_file_that_is_no_code_is_in_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["levelhead"]
    package = ROOT / "src" / "levelhead"
    packed = {path for pattern in patterns for path in package.glob(pattern) if path.is_file()}
    files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    left_out = {path.relative_to(package).as_posix() for path in files - packed if path.suffix != ".py"}
    assert left_out == set()
