"""The schema in docs is the schema of the code."""

from pathlib import Path

from levelhead.recipe import schema

DOCS = Path(__file__).parents[2] / "docs" / "recipe.schema.json"


def test_written_schema_is_in_step() -> None:
    assert DOCS.read_text(encoding="utf-8") == schema(), "run `make docs`"
