"""The command line as a whole: which commands there are, and what it says where a package is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from levelhead import __version__
from levelhead.cli import main as cli
from levelhead.installation import install_command


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
    assert install_command(extra) in capsys.readouterr().err


def test_an_unknown_missing_module_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli._explain(ModuleNotFoundError("No module named 'wrong'", name="wrong")) == 3
    assert "No module named 'wrong'" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["train"], ["doctor"], ["serve"], ["serve", "browser"]])
def test_h_is_help_everywhere(command: list[str]) -> None:
    result = CliRunner().invoke(cli.app, [*command, "-h"])
    assert result.exit_code == 0
    assert "Usage" in result.output


def module(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "levelhead", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_python_m_levelhead_is_the_command_line() -> None:
    assert module("--version").stdout.strip() == __version__


def test_the_shell_completes_commands() -> None:
    told = module(_LEVELHEAD_COMPLETE="complete_bash", COMP_WORDS="levelhead do", COMP_CWORD="1")
    assert told.stdout.split() == ["doctor"], told.stderr
    assert "--install-completion" in module("--help").stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("tasks: [{kind: fairness, path: no/such.jsonl}]", "no/such.jsonl: no such file"),
        ("tasks: [{kind: function, path: no/such.csv, rewards: [r.py:f]}]", "no/such.csv: no such file"),
        ("tasks: [{kind: fairness}]\nmodel: {name: ./nowhere}", "model.name: ./nowhere: no such folder"),
    ],
)
@pytest.mark.parametrize("command", ["train", "check"])
def test_a_missing_file_is_told_before_torch_is_imported(command: str, change: str, said: str, tmp_path: Path) -> None:
    model = "" if "model:" in change else "model: {preset: tiny}\n"
    (tmp_path / "r.yaml").write_text(f"name: x\n{model}{change}\ngrpo: {{steps: 1}}\n", encoding="utf-8")
    bar = "import sys; sys.modules.update(dict.fromkeys(['torch', 'transformers', 'numpy']))"
    code = f"{bar}; from levelhead.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, command, "r.yaml"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) <= 2


BAR = "import sys; sys.modules.update(dict.fromkeys(['torch', 'transformers', 'numpy']))"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "r.yaml", "--out", "used"], "used: already holds a run"),
        (["train", "r.yaml", "--out", "r.yaml"], "r.yaml: is a file"),
        (["train", "r.yaml", "--set", "log.wandb=mine"], "wandb is not installed"),
        (["eval", "r.yaml", "--checkpoint", "used"], "used: no model here"),
    ],
)
def test_a_folder_that_cannot_be_used_is_told_before_torch_is_imported(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "r.yaml").write_text(
        "name: x\nmodel: {preset: tiny}\ntasks: [{kind: fairness}]\ngrpo: {steps: 1}\n", encoding="utf-8"
    )
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "metrics.jsonl").touch()
    code = f"{BAR}; sys.modules['wandb'] = None; from levelhead.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("runs"))
