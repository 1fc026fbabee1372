"""What tasks and doctor say in English has its Chinese: every sentence of their sources, and every setting."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import levelhead
from levelhead.contrib.browser.baselines import RANDOM, SCRIPTS
from levelhead.diagnosis.chinese import IDEOGRAPH, own_words, said
from levelhead.diagnosis.findings import CATALOGUE
from levelhead.diagnosis.verdict import short
from levelhead.message import chinese

SOURCES = Path(levelhead.__file__).parent
SPEAKING = (
    "contrib/browser/episode.py",
    "contrib/browser/host.py",
    "tasks/endpoint/client.py",
    "tasks/judges/labelled.py",
    "tasks/judges/grader.py",
)
"""Modules whose sentences are events' messages."""
CALLS = ("Event", "News", "_report", "_tell")
"""What takes such a sentence as an argument."""
NAMES = ("text", "message", "told")
"""What such a sentence is bound to."""
COMPOSED = {
    "7: the policy's action led away from the page": (
        "click-test, seed 7, step 7: the policy's action led away from the page"
    ),
    "7, step 7: the policy's action led away from the page": "click-test, seed 7, step 7: the policy's action led away "
    "from the page",
    "7, step 7: 7": "click-test, seed 7, step 7: click-test did not answer for 7 s",
    "7 is not asked for now: 7; 7": "local is not asked for now: refused; no other judge is left",
}
"""Texts with a field that holds words, and the sentence that they stand for here."""


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """The texts that a module binds to a name for messages, or hands over as one; a field of a text is a number."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            if any(name in NAMES for name in names):
                yield from texts(node.value)
        if isinstance(node, ast.Call) and _called(node) in CALLS:
            for argument in node.args:
                yield from texts(argument)


def _called(node: ast.Call) -> str:
    return str(getattr(node.func, "id", "") or getattr(node.func, "attr", ""))


def texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The texts of an expression, the two of a choice apart."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
        yield node.lineno, node.value
    elif isinstance(node, ast.JoinedStr):
        yield node.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else "7" for v in node.values)
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body)
        yield from texts(node.orelse)
    elif isinstance(node, ast.Tuple):
        for element in node.elts:
            yield from texts(element)


@pytest.mark.parametrize("module", SPEAKING)
def test_every_sentence_of_an_event_has_its_chinese(module: str) -> None:
    for line, text in sentences(SOURCES / module):
        bare = COMPOSED.get(text, text.removeprefix("; ").strip())
        if len(bare.split()) < 3 or re.fullmatch(r"[7\W]+", bare):
            continue
        # What is appended to a sentence stands behind one.
        chinese = said(bare if not text.startswith(" ") else f"7{text}")
        assert IDEOGRAPH.search(chinese), f"{module}:{line}: {bare}"


def test_a_sentence_of_parts_is_translated_part_by_part() -> None:
    assert said("the browser is gone, and 3 episodes with it; starting another") == (
        "浏览器已退出\uff0c3 个回合随之中断\uff1b正在重新启动"
    )


def test_a_group_of_a_sentence_is_translated_too() -> None:
    hung = "click-test, seed 3, step 2: click-test did not answer for 10 s"
    assert said(hung) == "click-test\uff0c种子 3\uff0c第 2 步\uff1aclick-test 在 10 秒内没有响应"


def test_what_a_policy_does_that_reads_nothing_has_its_chinese() -> None:
    for script in SCRIPTS:
        assert IDEOGRAPH.search(short(f"click-test: {script}; enter-text: click(2)", "zh").strip("“”")), script
    assert short(RANDOM, "zh") == "“随机的合法动作”"
    assert short("the option that says it is not known", "zh") == "“表示不知道的选项”"


def test_an_answer_of_one_word_is_quoted_as_it_is() -> None:
    assert "right" in own_words().phrases
    assert short("right", "zh") == "“right”"


def test_what_has_no_translation_stays_to_the_letter() -> None:
    for text in ("", "mine; and theirs", "no gradient for 8 steps; and something else", "<b>reward</b>"):
        assert said(text) == text
    assert said("no gradient for 8 steps", "en") == "no gradient for 8 steps"


def test_a_pattern_has_as_many_groups_as_its_chinese_has_places() -> None:
    for pattern, words in own_words().patterns.items():
        numbered = {int(place) for place in re.findall(r"{(\d+)}", words)}
        assert pattern.groups == words.count("{}") or numbered <= set(range(pattern.groups)), pattern.pattern


def test_settings_that_are_words_have_their_chinese() -> None:
    for code, entry in CATALOGUE.items():
        for remedy in entry.remedies:
            values = [*remedy.recipe.values(), *remedy.trl.values(), *remedy.verl.values()]
            for value in values:
                if isinstance(value, str) and " " in value:
                    assert IDEOGRAPH.search(chinese(value)), f"{code}: {value}"
