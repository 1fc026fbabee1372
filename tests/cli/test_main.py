"""The command line as a whole: which commands there are, and what it says where a package is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from levelhead import __version__
from levelhead.cli import main as cli
from levelhead.diagnosis.chinese import IDEOGRAPH
from levelhead.errors import InputError
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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "nosuch.yaml"], "nosuch.yaml\uff1a没有这份配方"),
        (["check", "key.yaml"], "key.yaml\uff1a未知的键 'grpo.stepz'\uff1b是不是 'grpo.steps'\uff1f"),
        (["check", "theirs.yaml"], "theirs.yaml\uff1a未知的键 'grpo.beta'\uff1bTRL 的 beta 在这里是 'grpo.kl.coef'"),
        (["check", "type.yaml"], "type.yaml: grpo.steps\uff1a应为整数\uff0c现为 'two'"),
        (["check", "type.yaml", "--set", "grpo.steps=0"], "--set grpo.steps=0: grpo.steps\uff1a应不小于 1\uff0c现为 0"),
        (
            ["check", "type.yaml", "--set", "grpo={batch_size: 5, group_size: 4}"],
            "batch_size\uff085\uff09应为 group_size\uff084\uff09的倍数",
        ),
        (["check", "type.yaml", "--set", "grpo.steps=true"], "grpo.steps\uff1a应为数\uff0c而 true 和 false 不是数"),
        (["check", "kind.yaml"], "之一\uff0c现为 'functon'"),
        (["check", "broken.yaml"], "broken.yaml:5\uff1a不是合法的 YAML"),
        (["train", "data.yaml"], "none.jsonl\uff1a没有这个文件\uff08tasks[].path"),
        (["report", "nosuch"], "nosuch\uff1a没有这个文件夹"),
        (["report", "."], ".\uff1a该文件夹里没有训练"),
        (["watch", "nosuch"], "nosuch\uff1a没有这个文件夹"),
        (["doctor", "nosuch"], "nosuch\uff1a没有这个文件或文件夹"),
        (["doctor", "key.yaml"], "key.yaml\uff1a没有找到训练指标"),
        (["doctor", "key.yaml", "--map", "bad"], "--map bad\uff1a应为 SIGNAL=KEY"),
        (["check", "--explain", "rewards/ordr"], "没有这个名字的检查\uff1b是不是 rewards/order\uff1f"),
        (["train", "dual-tiny", "--set", "foo"], "--set foo\uff1a应为 key=value"),
    ],
)
def test_an_error_that_many_meet_is_chinese_for_who_asks_for_chinese(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = "name: x\nmodel: {preset: tiny}\ntasks: [{kind: fairness}]\n"
    recipes = {"key": "grpo: {stepz: 1}", "theirs": "grpo: {beta: 1}", "type": "grpo: {steps: two}", "broken": "a: ["}
    for name, text in recipes.items():
        (tmp_path / f"{name}.yaml").write_text(f"{head}{text}\n", encoding="utf-8")
    function = "{kind: function, path: none.jsonl, rewards: [rewards.py:f]}"
    data = head.replace("{kind: fairness}", function) + "grpo: {steps: 1}\n"
    (tmp_path / "data.yaml").write_text(data, encoding="utf-8")
    (tmp_path / "kind.yaml").write_text(head.replace("fairness", "functon"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(cli.app, [*arguments, "--lang", "zh"]).exception
    assert isinstance(error, InputError)
    assert cli._explain(error, cli._language([*arguments, "--lang", "zh"])) == 2
    assert says in capsys.readouterr().err
    assert cli._explain(error, cli._language(arguments)) == 2
    assert not IDEOGRAPH.search(capsys.readouterr().err)


def test_an_unknown_option_is_chinese_too_and_so_are_errors_in_a_chinese_locale(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = CliRunner().invoke(cli.app, ["check", "--plam", "x"], standalone_mode=False).exception
    assert error is not None
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    assert cli._language(["check"]) == "en"
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert (cli._language(["check"]), cli._language(["check", "--lang", "en"])) == ("zh", "en")
    assert cli._explain(error, cli._language([])) == 2
    assert "没有选项 --plam；是不是 --plan？" in capsys.readouterr().err


def test_an_error_without_chinese_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    cli._explain(InputError("nobody has put this: into Chinese"), cli._language(["train", "--lang=zh"]))
    assert capsys.readouterr().err == "levelhead: nobody has put this: into Chinese\n"


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


BAR = """
import json, sys
sys.modules.update(dict.fromkeys(["torch", "transformers", "numpy", "wandb"]))
from levelhead.cli.main import main
for arguments in json.load(sys.stdin):
    sys.argv[1:] = arguments
    print("\\0", file=sys.stderr)
    try:
        main()
    except SystemExit as leaves:
        print(leaves.code)
"""
"""Runs commands in one process in which nothing heavy can be imported; each one's messages begin with a zero byte."""
EARLY = (
    (["train", "fairness.yaml"], "no/such.jsonl: no such file"),
    (["check", "fairness.yaml"], "no/such.jsonl: no such file"),
    (["train", "function.yaml"], "no/such.csv: no such file"),
    (["check", "function.yaml"], "no/such.csv: no such file"),
    (["train", "model.yaml"], "model.name: ./nowhere: no such folder"),
    (["check", "model.yaml"], "model.name: ./nowhere: no such folder"),
    (["train", "r.yaml", "--out", "used"], "used: already holds a run"),
    (["train", "r.yaml", "--out", "r.yaml"], "r.yaml: is a file"),
    (["train", "r.yaml", "--set", "log.wandb=mine"], "wandb is not installed"),
    (["eval", "r.yaml", "--checkpoint", "used"], "used: no model here"),
)
RECIPES = {
    "fairness": "model: {preset: tiny}\ntasks: [{kind: fairness, path: no/such.jsonl}]",
    "function": "model: {preset: tiny}\ntasks: [{kind: function, path: no/such.csv, rewards: [r.py:f]}]",
    "model": "model: {name: ./nowhere}\ntasks: [{kind: fairness}]",
    "r": "model: {preset: tiny}\ntasks: [{kind: fairness}]",
}


def test_what_cannot_be_used_is_one_line_before_torch_is_imported(tmp_path: Path) -> None:
    for name, text in RECIPES.items():
        (tmp_path / f"{name}.yaml").write_text(f"name: x\n{text}\ngrpo: {{steps: 1}}\n", encoding="utf-8")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "metrics.jsonl").touch()
    asked = json.dumps([arguments for arguments, _ in EARLY])
    command = [sys.executable, "-c", BAR]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout.split() == ["2"] * len(EARLY), done.stderr
    for (arguments, says), message in zip(EARLY, done.stderr.split("\0\n")[1:], strict=True):
        assert says in message, arguments
        assert len(message.splitlines()) == 1, message
    assert not list(tmp_path.glob("runs"))
