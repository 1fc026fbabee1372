import json
from pathlib import Path

import pytest

from levelhead.errors import InputError
from levelhead.recipe.tasks import Function
from levelhead.tasks.files import find_files, read_rows
from levelhead.tasks.function import FunctionTask


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_know_their_line_and_blank_lines_count(tmp_path):
    rows = read_rows(write(tmp_path / "a.jsonl", '{"a": 1}\n\n{"a": 2}\n'))
    assert [(row.line, row.values["a"]) for row in rows] == [(1, 1), (3, 2)]


def test_a_json_array_is_read_like_lines(tmp_path):
    rows = read_rows(write(tmp_path / "a.json", json.dumps([{"a": 1}, {"a": 2}], indent=1)))
    assert [row.values["a"] for row in rows] == [1, 2]


def test_a_line_separator_inside_a_string_does_not_end_the_line(tmp_path):
    rows = read_rows(write(tmp_path / "a.jsonl", '{"a": "one\u2028two"}\n'))
    assert rows[0].text("a") == "one\u2028two"


def test_a_byte_order_mark_is_passed_over(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_rows(path)[0].values == {"a": 1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        (" \n\n", "empty"),
        ('{"a": 1}\n{"a": \n', "line 2"),
        ('{"a": 1}\n[1]\n', "line 2"),
        ('{"a": 1}\n"text"\n', "line 2"),
        ("[]", "empty list"),
        ('[{"a": 1}, 3]', "line 2"),
        ("[1, 2", "line 1"),
        ('{"a": ' + "[" * 100_000, "line 1"),
        ('{"a": 1}\n{"a": ' + "1" * 5000 + "}", "line 2: not a JSON object .a number of thousands of digits"),
        ("[" + "1" * 5000 + "]", "a number of thousands of digits"),
        ('{"a": 1}\n{"a": [{"b": "\\ud800 x"}]}', r"line 2: '\\ud800 x' holds half of a surrogate pair"),
        ('[{"a": 1}, {"\\udc00": 1}]', "line 2: .* holds half of a surrogate pair"),
    ],
)
def test_malformed_files_name_file_and_line(tmp_path, text, says):
    path = write(tmp_path / "bad.jsonl", text)
    with pytest.raises(InputError, match=says) as error:
        read_rows(path)
    assert str(path) in str(error.value)
    assert len(str(error.value)) < 400 + len(str(path))


def test_bytes_that_are_no_text_are_named(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(InputError, match="UTF-8"):
        read_rows(path)


def test_a_missing_field_names_line_field_and_what_is_there(tmp_path):
    (row,) = read_rows(write(tmp_path / "a.jsonl", '{"a": 1}'))
    with pytest.raises(InputError, match=r"line 1.*'b' is missing.*'a'"):
        row.text("b")


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (1, lambda row: row.text("a")),
        ("  ", lambda row: row.text("a")),
        ("red", lambda row: row.choice("a", ["blue", "green"])),
        (3, lambda row: row.integer("a", 0, 2)),
        (True, lambda row: row.integer("a", 0, 2)),
        ("1", lambda row: row.integer("a", 0, 2)),
        ([], lambda row: row.mapping("a")),
        ("ab", lambda row: row.texts("a")),
        (["a", 1], lambda row: row.texts("a")),
        (["a"], lambda row: row.texts("a", length=2)),
    ],
)
def test_a_field_of_the_wrong_kind_names_line_and_field(tmp_path, value, read):
    (row,) = read_rows(write(tmp_path / "a.jsonl", json.dumps({"a": value})))
    with pytest.raises(InputError, match=r"line 1.*'a'"):
        read(row)


def test_a_folder_gives_its_files_in_name_order_and_none_twice(tmp_path):
    for name in ("b.jsonl", "a.jsonl", "c.txt"):
        write(tmp_path / name, "{}")
    files = find_files([str(tmp_path), str(tmp_path / "a.jsonl")], [".jsonl"])
    assert [file.name for file in files] == ["a.jsonl", "b.jsonl"]


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nothing\.jsonl"):
        find_files(str(tmp_path / "nothing.jsonl"), [".jsonl"])
    with pytest.raises(InputError, match=r"no \*\.jsonl file"):
        find_files(str(tmp_path), [".jsonl"])
    with pytest.raises(InputError, match="empty list"):
        find_files([], [".jsonl"])


@pytest.mark.parametrize(("path", "home"), [("data/bbq", "nyu-mll/BBQ"), ("data/halueval", "RUCAIBox/HaluEval")])
def test_a_missing_public_data_set_comes_with_its_address(path: str, home: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"no such file or folder .*\n.*github.com/{home}"):
        find_files(str(tmp_path / path), [".jsonl"])
    with pytest.raises(InputError, match="openai/grade-school-math"):
        FunctionTask(Function(kind="function", path="data/gsm8k/train.jsonl"))


def test_other_missing_files_claim_no_address(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^\S+mine.jsonl: no such file or folder [^\n]*$"):
        find_files(str(tmp_path / "mine.jsonl"), [".jsonl"])
