"""Checks in Chinese, by what their modules may say; conftest.py looks at every check that these tests make."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest

import levelhead.preflight
from in_chinese import english
from levelhead.cli.check import show
from levelhead.diagnosis.chinese import IDEOGRAPH, Words
from levelhead.diagnosis.chinese import own_words as words_of_runs
from levelhead.preflight.chinese import own_words, told, told_in
from levelhead.preflight.result import Check, PreflightError, Report
from preflight.shown_in_chinese import left

SOURCES = Path(levelhead.preflight.__file__).parent
SILENT = {
    "__init__", "chinese", "divided", "entry", "explain", "plan", "plan_change", "plan_entry", "planner", "result",
}  # fmt: skip
"""Modules whose texts are not those of checks."""
SPEAKING = sorted(path for path in SOURCES.glob("*.py") if path.stem not in SILENT)
SELDOM_SAID = Path(__file__).with_name("seldom_said.txt").read_text(encoding="utf-8").splitlines()
"""Messages, ways out and evidence that no check of these tests shows, as it would show them."""
UNSAID = {"lorem ipsum 12 dolor"}
"""An answer that is nonsense."""
TRANSLATED = "\n".join(
    text
    for words in (own_words(), words_of_runs())
    for text in (*words.phrases, *(re.sub(r"\\(.)", r"\1", pattern.pattern) for pattern in words.patterns))
)
"""Whatever English there is Chinese for."""


def pieces(path: Path) -> Iterator[tuple[int, str]]:
    """What a module's texts hold between their fields, where that is two words or more."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            text = node.value.strip()
            if " " in text and len(re.findall("[A-Za-z]{2,}", text)) > 1:
                yield node.lineno, text


@pytest.mark.parametrize("path", SPEAKING, ids=lambda path: path.stem)
def test_whatever_a_check_may_say_has_its_chinese(path: Path) -> None:
    unsaid = {line: text for line, text in pieces(path) if not (text in TRANSLATED or IDEOGRAPH.search(told(text)))}
    assert set(unsaid.values()) <= UNSAID, unsaid


@pytest.mark.parametrize("message", SELDOM_SAID)
def test_what_checks_seldom_say_has_its_chinese(message: str) -> None:
    assert left(Check("family/echo", "pass", message)) == set(), told(message)


def test_every_place_of_a_pattern_is_one_of_its_groups_and_every_group_has_one() -> None:
    for pattern, words in own_words().patterns.items():
        places = [name for _, name, _, _ in Formatter().parse(words) if name is not None]
        numbers = {int(name) if name else at for at, name in enumerate(places)}
        assert numbers == set(range(pattern.groups)), pattern.pattern


def test_chinese_of_checks_holds_no_english_of_its_own() -> None:
    for words in (*own_words().phrases.values(), *own_words().patterns.values()):
        assert left(Check("", "warn", words)) == set(), words


def test_what_a_group_with_a_name_holds_stays_to_the_letter() -> None:
    words = Words({"phrases": {"reward": "奖励"}, "patterns": {r"(?P<name>\S+) of (\S+)": "{} ← {}"}})
    assert words.get("reward of reward", words.phrases.__getitem__) == "reward ← 奖励"
    failed = "reward function reward returned nan: data, row 6 (row 6, id 'x'), completion 'It is 5.'."
    assert told(failed).startswith("奖励函数 reward 返回了 nan\uff1a数据第 6 行")
    assert told(failed).endswith("输出 'It is 5.'")


def test_sentences_of_the_evidence_are_exchanged_and_data_are_not() -> None:
    evidence = {"source": "DeepSeekMath draws 64 rollouts a prompt, DAPO 16; TRL's default is 8", "loss": "reward"}
    shown = told_in({**evidence, "rows": [{"prompt": "What is 2 + 2?", "n": 3}], "changed": {"a second call": 6}})
    assert shown["source"].startswith("DeepSeekMath 每题采样 64 条")
    assert shown["loss"] == "reward"
    assert shown["rows"] == [{"prompt": "What is 2 + 2?", "n": 3}]
    assert shown["changed"] == {"再次调用": 6}
    assert told_in(evidence, "en") is evidence


BROKEN = (
    Check(
        "rewards/group-size",
        "warn",
        "K = 3: the group's mean and deviation are estimated from 3 rollouts, and many groups have no contrast",
        {"group_size": 3},
        "set grpo.group_size to 8 or more",
    ),
    Check(
        "agreement/dropout",
        "fail",
        "dropout is on while training (2 dropout modules, 0 attention layers, two passes differ by 0.4 nats): sampler "
        "and trainer compute different policies, and ratios are noise",
        {},
        "set every dropout to 0 for the grpo stage",
    ),
)
"""A warning and a failure."""


def test_the_table_of_a_broken_recipe_is_chinese(capsys: pytest.CaptureFixture[str]) -> None:
    show(Report(BROKEN, 1.0), language="zh")
    text = "".join(capsys.readouterr().out.split())
    assert "组内均值和标准差只由3条采样估计" in text
    assert "解决办法\uff1a在grpo阶段把所有dropout设为0" in text
    assert english(text.replace("group_size", "")) <= {"dropout", "nat", "grpo", "K"}


def test_why_a_run_does_not_start_is_told_in_the_readers_language() -> None:
    report = Report(BROKEN, 1.0)
    shown, plain = str(PreflightError(report, "run/check.json", "zh")), str(PreflightError(report, "run/check.json"))
    assert english(shown) == {"dropout"}
    assert shown.startswith("预检\uff1aagreement/dropout 未通过\uff1a训练时 dropout 开着")
    assert shown.endswith("不作预检直接开始。")
    assert plain.startswith("preflight: agreement/dropout failed: dropout is on while training")


def test_a_message_without_chinese_is_found() -> None:
    """What conftest.py asks of every check that these tests make."""
    unsaid = Check("loss/labels", "pass", "some of the labels are a riddle", {}, "set every dropout to 0")
    assert left(unsaid) >= {"some", "riddle", "every"}
    assert left(BROKEN[1]) == set()
