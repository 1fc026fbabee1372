"""What guard, trainer and doctor say in English has its Chinese: every sentence of their sources, and every setting."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import levelhead
from levelhead.diagnosis.chinese import IDEOGRAPH, own_words, said
from levelhead.diagnosis.findings import CATALOGUE

SOURCES = Path(levelhead.__file__).parent
SPEAKING = (
    "guard/guard.py",
    "guard/reading.py",
    "guard/region.py",
    "guard/invariants.py",
    "training/eventlog.py",
    "training/fit.py",
    "training/merging.py",
    "training/evaluator.py",
    "training/optim.py",
    "training/run.py",
    "training/signs.py",
    "training/unrated.py",
    "training/identities/advantages.py",
    "training/identities/digest.py",
    "training/identities/draws.py",
    "training/identities/items.py",
    "training/identities/merge.py",
    "training/identities/numbers.py",
    "training/identities/optimizer.py",
    "training/identities/stepping.py",
)
"""Modules whose sentences are events' messages."""
NAMES = ("text", "message", "told")
"""What such a sentence is bound to."""
COMPOSED = {
    "7; diagnosis: 7 (7, confidence 7)7": "no gradient for 7 steps; diagnosis: Deadlock (deadlock, confidence 7%)",
    "what answers told of the prompt went from 7 nats": "what answers told of the prompt went from 7 nats to 7",
    "7 fell from 7 to 7 over the last 7 steps": "reward fell from 7 to 7 over the last 7 steps",
    "the gradients of 7 pull apart (cosine 7, below 7, for 7 looks in a row): 7 takes over from the sum. "
    "grpo.merge.kind: 7 does so from the start, grpo.merge.switch_after: 0 never": "the gradients of a and b pull "
    "apart (cosine 7, below 7, for 7 looks in a row): 7 takes over from the sum. grpo.merge.kind: 7 does so from the "
    "start, grpo.merge.switch_after: 0 never",
    "7, and sampled warmer": "Dead groups: groups are redrawn, and sampled warmer",
    "Adam has counted 7 steps of 7, and 7 updates have reached it7: its bias corrections are off": "Adam has counted 7 "
    "steps of 7, and 7 updates have reached it (and so for others): its bias corrections are off",
    "7: 7 of 7 answers7 were dropped, since the rewards failed (7). The last one: 7": "a: 7 of 7 answers of an "
    "evaluation were dropped, since the rewards failed (7). The last one: 7",
    "of 7 rollouts 7 are left out of their group, and their tasks gave no score to 7; rollouts 7: 7": "of 7 rollouts 7 "
    "are left out of their group, and their tasks gave no score to 7; rollouts missing: 7",
    "update 7 7": "update 7 was made, and none stepped",
}
"""Texts with a field that holds words, and the sentence that they stand for here."""
UNTRANSLATED = {"7; logged: 7"}
"""What no reader is helped with: names of metrics and numbers."""


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """The texts that a module binds to a name for messages, or hands over as one; a field of a text is a number."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            if any(name in NAMES for name in names):
                yield from texts(node.value)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Event", "Violation"):
            for argument in node.args:
                yield from texts(argument)


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
        if bare in UNTRANSLATED or len(bare.split()) < 3 or re.fullmatch(r"[7\W]+", bare):
            continue
        # What is appended to a sentence stands behind one.
        chinese = said(bare if not text.startswith(" ") else f"7{text}")
        assert IDEOGRAPH.search(chinese), f"{module}:{line}: {bare}"


def test_a_sentence_of_parts_is_translated_part_by_part() -> None:
    text = (
        "validity fell from 0.9 to 0.2 over the last 5 steps; back to the weights of step 12, learning rate times 0.5"
    )
    assert said(text) == (
        "有效率在最近几步内由 0.9 降到 0.2\uff085 步\uff09\uff1b回到第 12 步的权重\uff0c学习率乘以 0.5"
    )
    assert said("no gradient for 8 steps; diagnosis: Deadlock (deadlock, confidence 80%) since step 7") == (
        "连续 8 步没有梯度\uff1b诊断\uff1a死锁\uff08deadlock\uff0c置信度 80%\uff09\uff0c始于第 7 步"
    )


def test_what_has_no_translation_stays_to_the_letter() -> None:
    for text in ("", "mine; and theirs", "no gradient for 8 steps; and something else", "<b>reward</b>"):
        assert said(text) == text
    assert said("no gradient for 8 steps", "en") == "no gradient for 8 steps"


def test_a_pattern_has_as_many_groups_as_its_chinese_has_places() -> None:
    for pattern, words in own_words().patterns.items():
        assert pattern.groups == words.count("{}"), pattern.pattern


def test_settings_that_are_words_have_their_chinese() -> None:
    for code, entry in CATALOGUE.items():
        for remedy in entry.remedies:
            values = [*remedy.recipe.values(), *remedy.trl.values(), *remedy.verl.values()]
            for value in values:
                if isinstance(value, str) and " " in value:
                    assert IDEOGRAPH.search(said(value)), f"{code}: {value}"
