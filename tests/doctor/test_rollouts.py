"""Answers read as text: the same one over and over, loops, cut ends, template tokens, scripts that change."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from levelhead.doctor.rollouts import (
    Answer,
    RolloutFacts,
    examine_answers,
    has_template,
    is_cut,
    is_mixed,
    loops,
    read_rollouts,
)
from levelhead.errors import InputError

SENTENCE = "The train covers sixty kilometres in half an hour, so that its speed is 120 kilometres an hour. "


def facts(*texts: str) -> RolloutFacts:
    return examine_answers([Answer(f"prompt {i // 2}", text) for i, text in enumerate(texts)])


def test_one_answer_to_everything_is_constant_and_its_groups_alike() -> None:
    same = facts(*["The answer is 4."] * 8)
    assert (same.constant, same.alike, same.prompts) == (1.0, 1.0, 4)
    different = facts(*(f"The answer is {i}." for i in range(8)))
    assert (different.constant, different.alike) == (0.125, 0.0)


def test_sound_answers_show_nothing() -> None:
    sound = facts(*(SENTENCE * 3 + f"So the answer is \\\\boxed{{{i}}}" for i in range(8)))
    assert (sound.repeating, sound.cut, sound.template, sound.mixed, sound.empty) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("so it is 4 " * 5, True), ("\n" + "wait, " * 6, True), (SENTENCE, False), ("-" * 80, False), ("1 2 3 4", False)],
)
def test_a_loop_at_the_end(text: str, expected: bool) -> None:
    assert loops(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("and then we mul", True),
        ("first, second,", True),
        ("Done.", False),
        ("it is 42", False),
        ("so<|im_end|>", False),
        ("```\nx\n```", False),
    ],
)
def test_an_end_in_mid_sentence(text: str, expected: bool) -> None:
    assert is_cut(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4<|im_end|>", False),
        ("4<|im_end|>\n<|im_start|>user\nhi", True),
        ("4\nuser: next", True),
        ("the user said so.", False),
    ],
)
def test_template_tokens_before_the_end(text: str, expected: bool) -> None:
    assert has_template(text) is expected


def test_a_script_that_the_prompt_does_not_have() -> None:
    chinese = "\u6211\u4eec\u5148\u8ba1\u7b97\u901f\u5ea6\u7136\u540e\u5f97\u51fa\u7b54\u6848"
    assert is_mixed(Answer("How fast is the train?", SENTENCE + chinese))
    assert not is_mixed(Answer(chinese, SENTENCE + chinese))
    assert not is_mixed(Answer("How fast?", SENTENCE))


@pytest.mark.parametrize("key", ["completion", "response", "output"])
def test_json_lines_gzipped_or_not_in_several_words(tmp_path: Path, key: str) -> None:
    lines = "".join(json.dumps({"prompt": f"p{i}", key: SENTENCE}) + "\n" for i in range(4)) + "no json\n"
    (tmp_path / "a.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    assert read_rollouts(tmp_path / "a.jsonl").count == read_rollouts(tmp_path / "b.jsonl.gz").count == 4
    assert read_rollouts(tmp_path).count == 8


def test_messages_and_lists_of_answers(tmp_path: Path) -> None:
    records = [
        {"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]},
        {"prompt": "q", "completions": ["a", "b"]},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    assert read_rollouts(tmp_path / "a.jsonl").count == 3


def test_trls_completions_in_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"step": [1, 1], "prompt": ["p", "p"], "completion": ["a", "a"], "advantage": [0.0, 0.0]})
    parquet.write_table(table, tmp_path / "completions_00001.parquet")
    assert read_rollouts(tmp_path).alike == 1.0


@pytest.mark.parametrize(
    ("name", "content"), [("a.jsonl", b"{}\n"), ("a.jsonl", b"\x00\xff"), ("a.parquet", b"nothing")]
)
def test_what_holds_no_answers_is_refused_in_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match="--rollouts") as error:
        read_rollouts(tmp_path / name)
    assert "\n" not in str(error.value)
