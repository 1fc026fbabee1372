"""The preflight's table on the terminal, in the reader's language."""

from __future__ import annotations

import pytest

from levelhead.cli.check import show
from levelhead.preflight.result import Check, Report
from levelhead.terminal import columns

CHECKS = (
    Check("loss/labels", "pass", "each of 133 completion tokens has one label that counts"),
    Check("memory/estimate", "warn", "about 9 GiB of 8 GiB", {"weights": 3}, "use model.lora"),
)


def shown(capsys: pytest.CaptureFixture[str], **language: str) -> str:
    show(Report(CHECKS, 1.25), **language)  # type: ignore[arg-type]
    return " ".join(capsys.readouterr().out.split())


def test_a_check_has_its_outcome_its_message_and_its_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys)
    assert "pass loss/labels each of 133 completion tokens has one label that counts" in text
    assert "fix: use model.lora" in text
    assert "1 passed, 1 warning, 0 failed in 1.2 s" in text


def test_the_table_is_chinese_where_a_message_has_its_chinese(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, language="zh")
    assert "通过 loss/labels 133 个输出 token 各有一个计入损失的标签" in text
    assert "警告 memory/estimate 约 9 GiB\uff0c共 8 GiB" in text
    assert "解决办法\uff1ause model.lora" in text
    assert "1 项通过\uff0c1 项警告\uff0c0 项未通过\uff0c用时 1.2 秒" in text


def test_lines_of_chinese_are_full_though_spaces_are_rare(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    message = (
        "K = 2: after division by the group's deviation the two advantages are always plus and minus the same number, "
        "however close the rewards; how much better one was is lost"
    )
    report = Report((Check("rewards/group-size", "warn", message, {}, "use model.lora"),), 1.25)
    show(report, language="zh")
    (line,) = [line.rstrip() for line in capsys.readouterr().out.splitlines() if "K =" in line]
    assert columns(line) > 70
