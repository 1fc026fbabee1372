"""``levelhead recipes``: list, show and copy the recipes that ship."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from levelhead.errors import InputError
from levelhead.terminal import say, say_json, width


def recipes(
    name: Annotated[str | None, typer.Argument(help="A recipe to show, or to copy.", show_default=False)] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="Copy it, and its reward files, into this folder.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """List the recipes that ship with the package; show one, or copy it to change it.

    Each can be trained by its name: levelhead train dual-tiny.
    """
    from levelhead.recipe import shipped

    if name is None:
        if to is not None:
            raise InputError(f"--to {to}: say which recipe: levelhead recipes NAME --to {to}")
        _list(as_json=as_json)
        return
    if to is not None:
        files = shipped.copy(name, to)
        if as_json:
            say_json({"files": [str(file) for file in files]})
        else:
            say("\n".join(str(file) for file in files))
        return
    recipe = shipped.by_name(name)
    if recipe is None:
        near = shipped.similar(name)
        hint = f"; did you mean {near!r}?" if near else ""
        raise InputError(f"{name}: no recipe of this name ships{hint} (levelhead recipes lists them)")
    if as_json:
        say_json({"name": recipe.name, "about": recipe.about, "text": recipe.text})
    else:
        say(recipe.text, end="")


def _list(*, as_json: bool) -> None:
    from levelhead.recipe import shipped

    everything = shipped.shipped()
    if as_json:
        say_json([{"name": recipe.name, "about": recipe.about} for recipe in everything])
        return
    wide = max(len(recipe.name) for recipe in everything)
    for recipe in everything:
        line = f"{recipe.name:<{wide}}  {recipe.about}"
        say(line if len(line) <= width() else f"{line[: width() - 3]}...")
