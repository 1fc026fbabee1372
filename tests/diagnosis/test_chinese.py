"""What guard, trainer and doctor say in English has its Chinese: every sentence of their sources, and every setting."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import levelhead
from levelhead.diagnosis.chinese import IDEOGRAPH, own_words, said
from levelhead.diagnosis.findings import CATALOGUE, wording

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
    "training/digest.py",
    "training/items.py",
    "training/watch.py",
    "training/weight_copies.py",
    "objective/audit.py",
    "contrib/browser/episode.py",
    "contrib/browser/pool.py",
    "tasks/endpoint/client.py",
    "tasks/judges/anchors.py",
    "tasks/judges/lineup.py",
)
"""Modules whose sentences are events' messages."""
CALLS = ("Event", "News", "_report", "_tell")
"""What takes such a sentence as an argument."""
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
    "7: 7 of 7 answers7 were dropped, since the rewards failed (7). The last one: 7": "a: 7 of 7 answers of an "
    "evaluation were dropped, since the rewards failed (7). The last one: 7",
    "of 7 rollouts 7 are left out of their group, and their tasks gave no score to 7; rollouts 7: 7": "of 7 rollouts 7 "
    "are left out of their group, and their tasks gave no score to 7; rollouts missing: 7",
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
    text = (
        "validity fell from 0.9 to 0.2 over the last 5 steps; back to the weights of step 12, learning rate times 0.5"
    )
    assert said(text) == (
        "有效率在最近几步内由 0.9 降到 0.2\uff085 步\uff09\uff1b回到第 12 步的权重\uff0c学习率乘以 0.5"
    )
    assert said("no gradient for 8 steps; diagnosis: Deadlock (deadlock, confidence 80%) since step 7") == (
        "连续 8 步没有梯度\uff1b诊断\uff1a死锁\uff08deadlock\uff0c置信度 80%\uff09\uff0c始于第 7 步"
    )


def test_a_group_of_a_sentence_is_translated_too() -> None:
    wrong_sign = (
        "term 'entropy' is to be maximised, but its own contribution lowers it: it enters the update with "
        "coefficient -0.01 where its weight is 0.01; a sign is applied twice, or not at all, on the way"
    )
    assert said(wrong_sign) == (
        "损失项 'entropy' 本应最大化\uff0c它自己的贡献却方向相反\uff1a它以系数 -0.01 进入更新\uff0c"
        "而权重为 0.01\uff1b途中有一个符号用了两次\uff0c或漏用了"
    )
    hung = "click-test, seed 3, step 2: click-test did not answer for 10 s"
    assert said(hung) == "click-test\uff0c种子 3\uff0c第 2 步\uff1aclick-test 在 10 秒内没有响应"
    constant = (
        "a: a policy that always answers 'x; y' scores +0.10, yours +0.00: GRPO will find it. "
        "Teach it first (sft.steps), or weigh strata alike (tasks[].balance: true)."
    )
    assert said(constant) == (
        "a\uff1a一律回答 'x; y' 的策略得 +0.10\uff0c你的策略得 +0.00\uff1aGRPO 会学成那样。请先用示范数据教会它"
        "\uff08sft.steps\uff09\uff0c或让各分层同等计权\uff08tasks[].balance: true\uff09。"
    )


def test_what_has_no_translation_stays_to_the_letter() -> None:
    for text in ("", "mine; and theirs", "no gradient for 8 steps; and something else", "<b>reward</b>"):
        assert said(text) == text
    assert said("no gradient for 8 steps", "en") == "no gradient for 8 steps"


def test_a_pattern_has_as_many_groups_as_its_chinese_has_places() -> None:
    for pattern, words in own_words().patterns.items():
        numbered = {int(place) for place in re.findall(r"{(\d+)}", words)}
        assert pattern.groups == words.count("{}") or numbered <= set(range(pattern.groups)), pattern.pattern


def test_the_guards_words_on_a_finding_with_its_strongest_argument_have_their_chinese() -> None:
    where = {"task": "bbq", "stratum": "disambig", "early": 0.6, "late": 0.95, "before": 0.12, "after": 0.02}
    entry = CATALOGUE["stratum-falls"]
    argument = wording("stratum-falls", "common-answer-gains", where)
    sentence = said(f"{entry.title.en} (confidence 80%): {argument}; {entry.meaning.en}")
    chinese = wording("stratum-falls", "common-answer-gains", where, "zh")
    assert sentence.startswith(entry.title.zh)
    assert chinese in sentence
    assert sentence.endswith(entry.meaning.zh)


def test_settings_that_are_words_have_their_chinese() -> None:
    for code, entry in CATALOGUE.items():
        for remedy in entry.remedies:
            values = [*remedy.recipe.values(), *remedy.trl.values(), *remedy.verl.values()]
            for value in values:
                if isinstance(value, str) and " " in value:
                    assert IDEOGRAPH.search(said(value)), f"{code}: {value}"
