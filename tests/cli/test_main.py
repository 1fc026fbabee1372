"""The command line as a whole: which commands there are, and what it says where a package is missing."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from levelhead.cli import main as cli


def test_every_command_is_registered() -> None:
    text = CliRunner().invoke(cli.app, ["--help"]).output
    for command in ("train", "check", "eval", "report", "simulate", "doctor", "demo", "serve"):
        assert f" {command} " in text


@pytest.mark.parametrize(
    ("module", "extra"), [("torch", "train"), ("playwright.async_api", "browser"), ("lark", "workflow")]
)
def test_a_missing_package_names_the_extra_that_brings_it(
    module: str, extra: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli._explain(ModuleNotFoundError(f"No module named {module!r}", name=module)) == 2
    assert f"pip install 'levelhead[{extra}]'" in capsys.readouterr().err


def test_an_unknown_missing_module_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli._explain(ModuleNotFoundError("No module named 'wrong'", name="wrong")) == 3
    assert "No module named 'wrong'" in capsys.readouterr().err
