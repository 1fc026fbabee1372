"""Files of unknown origin are read in bounds, and what is written is strict."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from levelhead.documents import DocumentError, dump_json, load_json, read_lines, read_text, require_regular
from levelhead.documents.yaml_text import load_yaml
from levelhead.errors import InputError


@pytest.mark.parametrize(
    "text",
    ["!!float x", "!!int ''", "!!bool x", "!!timestamp x", "2001-02-31", "x: " + "1" * 5000, "[" * 600, "{a: " * 600,
     "? [a]\n: b", "a: 1\na: 2", "&a [*a]", "!!set 3", "!!python/object:os.system x", "\x00", "\x1b",
     "- b: [", "!!omap [a]"],
)  # fmt: skip
def test_yaml_that_is_none_is_told_in_one_line(text: str) -> None:
    with pytest.raises(DocumentError, match="not valid YAML") as caught:
        load_yaml(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 300


@pytest.mark.parametrize(
    "pattern", ["[*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]", "{{<<: [*{a}, *{a}, *{a}, *{a}]}}"]
)
def test_a_bomb_of_aliases_does_not_go_off(pattern: str) -> None:
    lines = [f"{b}: &{b} {pattern.format(a=a)}" for a, b in zip("abcdefghijkl", "bcdefghijklm", strict=True)]
    with pytest.raises(DocumentError, match="more than"):
        load_yaml("\n".join(["a: &a {k: v}", *lines]))


def test_a_document_too_large_is_refused_before_all_of_it_is_read() -> None:
    """What follows the last value that may be read is no YAML, and nobody gets there."""
    with pytest.raises(DocumentError, match="more than 20000 values"):
        load_yaml("- {a: 1}\n" * 10_000 + "- [")


def test_yaml_that_a_recipe_needs_is_read() -> None:
    text = "rate: 1e-6\nbase: &b {x: 1}\nmore: {<<: *b, y: .inf}\non: true\n"
    assert load_yaml(text) == {"rate": 1e-6, "base": {"x": 1}, "more": {"x": 1, "y": float("inf")}, True: True}


def test_json_is_strict_both_ways() -> None:
    text = dump_json({"a": float("nan"), "b": [float("inf"), 1], "c": "\ud800", float("nan"): -float("inf")})
    text.encode("utf-8")
    assert json.loads(text, parse_constant=pytest.fail) == {"a": "nan", "b": ["inf", 1], "c": "\ud800", "nan": "-inf"}
    for bad in ("[" * 100 + "]" * 100, "[" * 100_000, "{", "1" * 5000):
        with pytest.raises(DocumentError):
            load_json(bad)


def test_a_pipe_a_device_and_a_folder_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a pipe"), (Path("/dev/zero"), "a device"), (tmp_path, "a folder")):
        for read in (require_regular, read_text, lambda p: list(read_lines(p))):
            with pytest.raises(InputError, match=f"is {kind}"):
                read(path)


def test_lines_are_cut_and_bombs_end(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b"a" * 5_000_000 + b"\nb\n"))
    assert [len(line) for line in read_lines(path, longest=1000)] == [1000, 2]
    with pytest.raises(InputError, match="holds more than"):
        list(read_lines(path, longest=1000, most=1 << 20))
    with pytest.raises(InputError, match="larger than"):
        read_text(path, most=1000)
