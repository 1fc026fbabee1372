"""The numbers that decide a diagnosis have names, and say where they are from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import levelhead.diagnosis

ROOM = Path(levelhead.diagnosis.__file__).parent
FILES = [
    *sorted((ROOM / "detectors").glob("*.py")),
    ROOM / "ranking.py",
    ROOM / "trend.py",
    ROOM / "reward_trend.py",
    ROOM / "sameness.py",
]
PLAIN = (0, 1, 2)
"""Counts, ends of a scale and halves need no name."""
ROUNDING = 1e-6
"""Nor does what keeps a quotient from a division by zero."""


def unnamed(source: str) -> Iterator[str]:
    """Lines of the functions of a module that hold a number without a name."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        digits = {
            id(call.args[1])
            for call in ast.walk(function)
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == "round"
            and call.args[1:]
        }
        defaults = {id(node) for node in (*function.args.defaults, *function.args.kw_defaults)}
        keys = {id(key) for table in ast.walk(function) if isinstance(table, ast.Dict) for key in table.keys}
        for node in ast.walk(function):
            if (
                not isinstance(node, ast.Constant)
                or id(node) in digits | defaults | keys
                or isinstance(node.value, bool)
            ):
                continue
            if isinstance(node.value, int | float) and node.value not in PLAIN and abs(node.value) > ROUNDING:
                yield f"{node.lineno}: {node.value} in {function.name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_number_of_a_detector_has_a_name(path: Path) -> None:
    assert list(unnamed(path.read_text(encoding="utf-8"))) == []


def test_a_number_without_a_name_is_noticed() -> None:
    assert list(unnamed("LIMIT = 0.3\ndef f(x):\n    return x > LIMIT or x < 0.25\n")) == ["3: 0.25 in f"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_numbers_of_a_detector_say_where_they_are_from(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and any(
            isinstance(line, ast.Assign)
            and isinstance(line.value, ast.Constant)
            and isinstance(line.value.value, float)
            for line in node.body
        ):
            source_of = ast.get_source_segment(source, node) or ""
            assert re.search("Set by hand on (the development logs|simulated runs)", source_of), node.name
