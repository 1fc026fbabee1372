"""The numbers that decide a diagnosis have names, and say where they are from."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import levelhead.diagnosis
from levelhead.diagnosis.detectors.base import Tuned
from levelhead.diagnosis.trend import THRESHOLDS, thresholds

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


def test_the_numbers_of_a_detector_say_where_they_are_from() -> None:
    assert "Set by hand on the development logs" in THRESHOLDS.read_text(encoding="utf-8").splitlines()[0]


def argued(detector: ast.ClassDef) -> set[str]:
    """Numbers of the arguments that a detector adds by their names."""
    names = set()
    for call in ast.walk(detector):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "self.argue":
            key, by = call.args[1], [keyword.value for keyword in call.keywords if keyword.arg == "by"]
            stem = ast.literal_eval((by or [key])[0]).upper().replace("-", "_")
            names |= {f"{stem}_WEIGHT", f"{stem}_RANGE"}
    return names


def test_every_number_of_the_table_is_used_and_every_number_used_is_in_the_table() -> None:
    used = {}
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and any(ast.unparse(b) in ("Tuned", "Numbered") for b in node.bases):
                own = {
                    name.id
                    for line in node.body
                    if isinstance(line, ast.Assign)
                    for name in ast.walk(line.targets[0])
                    if isinstance(name, ast.Name)
                }
                mine = [one for one in ast.walk(node) if isinstance(one, ast.Attribute) and one.attr.isupper()]
                used[node.name] = {one.attr for one in mine if ast.unparse(one.value) == "self"} - own | argued(node)
    assert used.pop("Tuned") == set()  # what all detectors share has no numbers of its own
    assert used == {name: set(numbers) for name, numbers in thresholds().items()}


def test_a_number_that_is_not_in_the_table_is_named() -> None:
    with pytest.raises(AttributeError, match=r"no number NOWHERE in thresholds\.yaml"):
        _ = Untuned().NOWHERE


class Untuned(Tuned):
    """A detector without numbers."""
