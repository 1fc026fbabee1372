"""What a log holds that was not read is told in the language of the report."""

from __future__ import annotations

import ast
import importlib
import json
from pathlib import Path
from string import Formatter

import pytest

import levelhead.doctor
from levelhead.doctor.render import text
from levelhead.doctor.report import examine
from levelhead.doctor.survey import survey
from levelhead.message import Message

ROOM = Path(levelhead.doctor.__file__).parent


def messages() -> list[Message]:
    """Every message of the readers, and of a folder of runs."""
    names = ("binary", "text", "shapes", "collect", "own", "base", "sources")
    modules = [importlib.import_module(f"levelhead.doctor.readers.{name}") for name in names]
    modules.append(importlib.import_module("levelhead.doctor.survey"))
    return [one for module in modules for one in vars(module).values() if isinstance(one, Message)]


def test_every_reason_has_its_chinese_with_the_same_fields() -> None:
    assert len(messages()) >= 14
    for message in messages():
        assert any(ord(c) > 0x2E80 for c in message.zh), message.en
        fields = [{name for _, name, _, _ in Formatter().parse(words) if name} for words in (message.en, message.zh)]
        assert fields[0] == fields[1], message.en


def test_no_reader_gives_a_reason_in_one_language_alone() -> None:
    for path in sorted((ROOM / "readers").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("unread.add"):
                assert isinstance(node.args[1], ast.Call), ast.unparse(node)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rows = [{"step": i, "stage": "grpo", "reward": 0.1 * i, "loss": 0.1} for i in range(1, 9)]
    path = tmp_path / "one" / "metrics.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "broken\n", encoding="utf-8")
    return path


def test_the_report_is_chinese_to_its_last_line(log: Path) -> None:
    shown = text(examine(log.parent), "zh")
    assert "不是一行 JSON" in shown
    assert "not a line of JSON" not in shown
    assert "not a line of JSON" in text(examine(log.parent), "en")


def test_a_table_of_runs_says_in_chinese_what_it_could_not_read(log: Path) -> None:
    for name in ("two", "three"):
        (log.parent.parent / name).mkdir()
        (log.parent.parent / name / "metrics.jsonl").write_bytes(log.read_bytes() if name == "two" else b"{}\n")
    many = survey(log.parent.parent)
    assert many is not None
    shown = "\n".join(words for words, _ in many.lines("zh"))
    assert "没有找到训练指标" in shown
    assert "no training metrics" not in shown
