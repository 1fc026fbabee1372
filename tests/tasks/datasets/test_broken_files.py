"""Ten broken files of every data set: one line that names file, line and key, and never a traceback."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from levelhead.errors import InputError
from levelhead.tasks.datasets.load import NAMES, load
from tasks.datasets import samples

HEADER = "Question,Best Answer,Correct Answers,Incorrect Answers\n"

PAIR = {"question": "Q?", "query_id": "q"}
MAIN = {
    "gsm8k": "question",
    "math": "solution",
    "aime": "problem",
    "humaneval": "canonical_solution",
    "mbpp": "code",
    "hotpotqa": "answer",
    "drop": "passage",
    "bbq": "context",
    "halueval": "right_answer",
    "truthfulqa": "best_answer",
}
"""A field that each data set cannot do without."""

OTHER = {name: "gsm8k" if name != "gsm8k" else "humaneval" for name in NAMES}

Breaker = Callable[[str, samples.Rows, Path], tuple[str, list[str]]]
"""Writes a broken file; returns its path and what the error must name beside it."""


def cut_off(name: str, rows: samples.Rows, folder: Path) -> tuple[str, list[str]]:
    text = samples.lines(rows)
    return _written(folder, text[: len(json.dumps(rows[0])) + 20]), ["line 2", "not a JSON object"]


def wrong_column(name: str, rows: samples.Rows, folder: Path) -> tuple[str, list[str]]:
    second = {("renamed" if key == MAIN[name] else key): value for key, value in rows[1].items()}
    return samples.write_lines(folder / "data.jsonl", [rows[0], second]), ["line 2", repr(MAIN[name]), "missing"]


def wrong_type(name: str, rows: samples.Rows, folder: Path) -> tuple[str, list[str]]:
    second = {**rows[1], MAIN[name]: ["a", "list"]}
    return samples.write_lines(folder / "data.jsonl", [rows[0], second]), ["line 2", repr(MAIN[name]), "list"]


def empty(name: str, rows: samples.Rows, folder: Path) -> tuple[str, list[str]]:
    return _written(folder, " \n\n"), ["empty"]


def binary(name: str, rows: samples.Rows, folder: Path) -> tuple[str, list[str]]:
    (folder / "data.jsonl").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8)
    return str(folder / "data.jsonl"), ["not UTF-8 text", "byte 0"]


def marked_utf16(name: str, rows: samples.Rows, folder: Path) -> tuple[str, list[str]]:
    """A byte order mark of UTF-16; UTF-8's own is no fault (test_readers.py)."""
    (folder / "data.jsonl").write_text(samples.lines(rows), encoding="utf-16")
    return str(folder / "data.jsonl"), ["not UTF-8 text", "convert the file to UTF-8"]


def huge_line(name: str, rows: samples.Rows, folder: Path) -> tuple[str, list[str]]:
    second = {**rows[1], MAIN[name]: "many words " * 500_000}
    return samples.write_lines(folder / "data.jsonl", [rows[0], second]), ["line 2", repr(MAIN[name]), "5,500,000"]


def duplicate(name: str, rows: samples.Rows, folder: Path) -> tuple[str, list[str]]:
    """The same id; where rows have none, the same question with another answer."""
    changes: dict[str, dict[str, Any]] = {
        "gsm8k": {"answer": "It is 8.\n#### 8"},
        "math": {"solution": r"\boxed{3}"},
        "halueval": {"right_answer": "Bergen"},
    }
    said = ["another answer", "earlier line"] if name in changes else ["line 1", "already"]
    second = {**rows[0], **changes.get(name, {})}
    return samples.write_lines(folder / "data.jsonl", [rows[0], second]), ["line 2", *said]


def not_a_number(name: str, rows: samples.Rows, folder: Path) -> tuple[str, list[str]]:
    second = {**rows[1], MAIN[name]: float("nan")}
    return samples.write_lines(folder / "data.jsonl", [rows[0], second]), ["line 2", repr(MAIN[name]), "NaN"]


def another_data_set(name: str, rows: samples.Rows, folder: Path) -> tuple[str, list[str]]:
    other = OTHER[name]
    return samples.write_lines(folder / "data.jsonl", samples.SAMPLES[other]), ["line 1", "missing", other]


BREAKERS: list[Breaker] = [
    cut_off, wrong_column, wrong_type, empty, binary, marked_utf16, huge_line, duplicate, not_a_number,
    another_data_set,
]  # fmt: skip


def _written(folder: Path, text: str) -> str:
    (folder / "data.jsonl").write_text(text, encoding="utf-8")
    return str(folder / "data.jsonl")


@pytest.mark.parametrize("breaker", BREAKERS, ids=lambda breaker: breaker.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_a_broken_file_is_one_line_that_names_file_line_and_key(name: str, breaker: Breaker, tmp_path: Path) -> None:
    path, said = breaker(name, samples.SAMPLES[name], tmp_path)
    with pytest.raises(InputError) as error:
        load(name, path)
    message = str(error.value)
    assert message.startswith(path)
    assert "\n" not in message
    assert len(message) < 1000
    for words in said:
        assert words in message, message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is not a single row"),
        ("Question,Question\na,b\n", "line 1: every column needs a name of its own"),
        (HEADER + "a,b\n", "line 2: 2 fields where the header has 4"),
        (HEADER + '"a,b,c,d\n', "not valid CSV"),
        (HEADER + "a,nan,c,d\n", "line 2: the field 'Best Answer' must be text, not NaN"),
        (HEADER + "a,b,c,\n", "line 2: the field 'Incorrect Answers' is empty"),
        (HEADER + "a,b,c,b\n", "line 2: there must be an incorrect answer"),
        ("Question,Answer\na,b\n", "line 2: the field 'Best Answer' is missing"),
    ],
)  # fmt: skip
def test_a_broken_csv_names_the_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "TruthfulQA.csv").write_text(text)
    with pytest.raises(InputError, match=re.escape(said)) as error:
        load("truthfulqa", str(tmp_path / "TruthfulQA.csv"))
    assert str(error.value).startswith(str(tmp_path))


@pytest.mark.parametrize("keep", [30, 5, 0])
def test_a_gzip_file_that_was_cut_off_says_so(keep: int, tmp_path: Path) -> None:
    file = Path(samples.write_gzip(tmp_path / "HumanEval.jsonl.gz", samples.HUMANEVAL))
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(InputError, match="not a whole gzip file"):
        load("humaneval", str(file))


def test_files_under_a_wrong_ending_are_recognised(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"PAR1 and so on")
    with pytest.raises(InputError, match=r"a\.jsonl: not JSON but a Parquet file; give it the ending \.parquet"):
        load("gsm8k", str(tmp_path / "a.jsonl"))


def test_a_broken_parquet_file_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and so on")
    with pytest.raises(InputError, match=r"a\.parquet: not a readable Parquet file"):
        load("gsm8k", str(tmp_path / "a.parquet"))


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("gsm8k", {"answer": "It is seven."}, "'answer' must end in '#### N'"),
        ("math", {"solution": "It is 4."}, r"'solution' must hold the answer in \\boxed{}"),
        ("math", {"level": "Level 9"}, "'level' must be 'Level 1' to 'Level 5'"),
        ("aime", {"answer": "1000"}, "'answer' must be a whole number from 0 to 999"),
        ("aime", {"answer": 3.5}, "'answer' must be a whole number from 0 to 999"),
        ("humaneval", {"entry_point": "other"}, "'entry_point' must name a function of 'prompt'"),
        ("humaneval", {"test": "print(1)"}, "'test' asserts nothing"),
        ("mbpp", {"test_list": ["assert other(1)"]}, "'test_list' calls no function of 'code'"),
        ("hotpotqa", {"context": [["A", "one text"]]}, "'context' must hold"),
        ("hotpotqa", {"level": "harder"}, "'level' must be easy or medium or hard"),
        ("drop", {"answers_spans": {"spans": [], "types": []}}, "'answers_spans' holds no answer"),
        ("drop", {"answers_spans": {"spans": ["a"], "types": []}}, "'types' must hold 1 texts"),
        ("bbq", {"label": 1}, "'label' is 1"),
        ("halueval", {"right_answer": " "}, "'right_answer' is empty"),
        ("truthfulqa", {"incorrect_answers": []}, "there must be an incorrect answer"),
    ],
)
def test_a_field_that_contradicts_the_format_is_named(
    name: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    first, second = samples.SAMPLES[name][:2]
    with pytest.raises(InputError, match=said) as error:
        load(name, samples.write_lines(tmp_path / "data.jsonl", [first, {**second, **changes}]))
    assert "line 2" in str(error.value)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"p": {"passage": "P."}}, "passage 'p': the field 'qa_pairs' is missing"),
        ({"p": {"qa_pairs": []}}, "the field 'passage' is missing"),
        ({"p": {"passage": "P.", "qa_pairs": {}}}, "'qa_pairs' must be a list of objects"),
        ({"p": {"passage": "P.", "qa_pairs": [PAIR]}}, "the field 'answer' is missing"),
        ({"p": {"passage": "P.", "qa_pairs": [{**PAIR, "answer": {}}]}}, "'number', 'spans' and 'date'"),
        ({"p": {"passage": "P.", "qa_pairs": [{**PAIR, "answer": {"number": []}}]}}, "'number' must be"),
        ({"p": "text"}, "'p' must be an object"),
    ],
)  # fmt: skip
def test_a_broken_file_of_drops_authors_names_the_field(broken: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "drop.json").write_text(json.dumps(broken))
    with pytest.raises(InputError, match=re.escape(said)) as error:
        load("drop", str(tmp_path / "drop.json"))
    assert "line 1" in str(error.value)
