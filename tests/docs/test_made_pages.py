"""Pages made from code are what the code makes, and the site's navigation names every page once."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from levelhead.cli import page as commands
from levelhead.recipe import reference
from levelhead.recipe.recipe import Recipe

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_page_of_recipe_keys_is_in_step() -> None:
    assert (DOCS / "recipe.md").read_text(encoding="utf-8") == reference.page(), "run `make docs`"


def test_the_page_of_commands_is_in_step() -> None:
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == commands.page(), "run `make docs`"


def test_every_recipe_key_has_a_row_and_a_sentence() -> None:
    schema = Recipe.model_json_schema()
    keys = [key for part in (schema, *schema["$defs"].values()) for key in part.get("properties", ())]
    rows = [line for line in reference.page().splitlines() if line.startswith("| `")]
    assert len(rows) == len(keys) > 300
    assert [row for row in rows if not row.rstrip(" |").endswith((".", "`", ")", '"'))] == []


def leaves(nav: list[dict[str, Any]]) -> Iterator[str]:
    for entry in nav:
        for value in entry.values():
            yield from leaves(value) if isinstance(value, list) else [value]


def test_the_site_names_every_page_once() -> None:
    with (ROOT / "zensical.toml").open("rb") as file:
        names = list(leaves(tomllib.load(file)["project"]["nav"]))
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert sorted(names) == sorted(name for name in pages if not name.startswith("findings/") or "README" in name)
