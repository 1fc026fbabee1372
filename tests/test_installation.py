"""The command that a message gives for more packages is the right one for how Levelhead was installed."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from levelhead.installation import install_command

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "levelhead"


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
    packed = {path for pattern in patterns for path in PACKAGE.glob(pattern) if path.is_file()}
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    left_out = {path.relative_to(PACKAGE).as_posix() for path in files - packed if path.suffix != ".py"}
    assert left_out == set()


POSIX = ("fcntl", "resource", "pwd", "grp", "termios", "pty", "tty", "syslog")
"""Modules that Windows lacks."""


def test_no_module_needs_what_windows_lacks() -> None:
    launcher = PACKAGE / "tasks" / "sandbox" / "launcher"  # a program of its own, for Linux
    for path in PACKAGE.rglob("*.py"):
        if launcher in path.parents:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not set(names) & set(POSIX), f"{path}: {names}"
            assert "fcntl" not in path.read_text(encoding="utf-8"), path


def test_commands_and_rates_run_where_the_modules_are_away(tmp_path: Path) -> None:
    code = (
        f"import sys\nfor name in {POSIX}: sys.modules[name] = None\n"
        "from pathlib import Path\n"
        "import levelhead.cli.main, levelhead.doctor.report, levelhead.recipe, levelhead.lab\n"
        "from levelhead.recipe.endpoint import Endpoint\n"
        "from levelhead.tasks.endpoint.pace import Rates\n"
        "section = Endpoint(base_url='http://one', model='m', requests_per_minute=6)\n"
        "print([round(Rates(section, Path(sys.argv[1])).reserve(1)) for _ in range(3)])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[0, 10, 20]\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel and a source archive, made by the build backend alone, without a network."""
    place = tmp_path_factory.mktemp("built")
    source = place / "source"
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=left_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    code = "import sys, setuptools.build_meta as b; to = sys.argv[1]; b.build_wheel(to); b.build_sdist(to)"
    subprocess.run([sys.executable, "-c", code, str(place)], cwd=source, capture_output=True, check=True)
    return place


def test_the_wheel_runs_where_it_is_installed(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("levelhead-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
        assert any(name.endswith("plotly-basic.LICENSE") for name in archive.namelist())
        about = archive.read(next(name for name in archive.namelist() if name.endswith("METADATA"))).decode()
    command = [sys.executable, "-m", "levelhead.cli", "--version"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip().endswith(re.search(r"^Version: (.+)$", about, re.M)[1])  # type: ignore[index]


def test_the_source_archive_holds_what_the_wheel_holds(built: Path) -> None:
    (wheel,), (archive,) = built.glob("levelhead-*.whl"), built.glob("levelhead-*.tar.gz")
    with zipfile.ZipFile(wheel) as packed, tarfile.open(archive) as sources:
        ours = {name for name in packed.namelist() if name.startswith("levelhead/")}
        theirs = {name.partition("/src/")[2] for name in sources.getnames() if "/src/levelhead/" in name}
    assert ours <= theirs
