"""A run in a notebook: its lines, its verdict, and no object's address."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from levelhead.recipe import dump, validate
from small_run import recipe

SRC = Path(__file__).parents[1] / "src"
CELLS = ("from levelhead import train", "result = train('small.yaml', out='run')", "result", "print(repr(result))")


def test_a_notebook_shows_the_run_as_it_goes_and_its_verdict_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    import nbformat

    (tmp_path / "small.yaml").write_text(dump(validate(recipe(tmp_path, sft=None))), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SRC), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    client.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs: list[list[Any]] = [cell["outputs"] for cell in notebook["cells"]]
    assert outputs[1], "a run that trains shows something"
    (shown,) = outputs[2]
    assert "one" in shown["data"]["text/html"]
    assert "object at 0x" not in shown["data"]["text/plain"]
    (printed,) = outputs[3]
    assert printed["text"].startswith("Result(done, ")
