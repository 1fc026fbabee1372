"""An axis of shares ends at all of them: no chart shows room for 105%."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import levelhead.report
from levelhead.report.panels import SHARE

FILES = sorted(Path(levelhead.report.__file__).parent.glob("*.py"))


def share_axes(path: Path) -> list[set[str]]:
    """Keys of each axis in a file whose ticks are per cent; ``**SHARE`` brings its own."""
    axes = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Dict):
            keys = {key.value for key in node.keys if isinstance(key, ast.Constant)}
            values = [value.value for value in node.values if isinstance(value, ast.Constant)]
            if "tickformat" in keys and any(str(value).endswith("%") for value in values):
                axes.append(keys | (set(SHARE) if None in node.keys else set()))
    return axes


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_axis_of_shares_ends_at_all_of_them(path: Path) -> None:
    for keys in share_axes(path):
        assert keys & {"range", "maxallowed"}, f"{path.name}: an axis of per cents that may go beyond 100"


def test_there_are_such_axes() -> None:
    assert sum(len(share_axes(path)) for path in FILES) >= 4
    assert SHARE["maxallowed"] == 1
