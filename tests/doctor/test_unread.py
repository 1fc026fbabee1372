"""What a log holds that was not read is told in the language of the report."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import levelhead.doctor
from levelhead.doctor.render import text
from levelhead.doctor.report import examine
from levelhead.doctor.survey import survey
from levelhead.doctor.unread import reason

ROOM = Path(levelhead.doctor.__file__).parent


def said() -> Iterator[str]:
    """Every reason that a reader gives, with a number in place of what it fills in."""
    for path in sorted((ROOM / "readers").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("unread.add"):
                part = node.args[1]
                pieces = part.values if isinstance(part, ast.JoinedStr) else [part]
                words = "".join(str(p.value) if isinstance(p, ast.Constant) else "7" for p in pieces)
                yield words.replace("file7", "files")


def test_every_reason_has_its_chinese() -> None:
    reasons = list(said())
    assert len(reasons) >= 10
    for why in [*reasons, "3 more", "holds more than 50 runs; give folders inside it"]:
        assert reason(why, "en") == why
        assert any(ord(c) > 0x2E80 for c in reason(why, "zh")), why


def test_numbers_and_names_stay() -> None:
    assert reason("columns of other runs: a, b", "zh") == "其他训练的列\uff1aa, b"
    assert reason("1 other file of the folder", "zh") == "文件夹中的另外 1 个文件"
    assert reason("something that no reader says", "zh") == "something that no reader says"


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
