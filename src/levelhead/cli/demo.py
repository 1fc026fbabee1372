"""``levelhead demo``: the main job on the embedded default."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from levelhead.cli.train import keys_of, run
from levelhead.errors import InputError


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/demo"),
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Override a key of the recipe.")] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option("--accept-changes", help="Keys that may have changed since it was begun, or all."),
    ] = None,
    lang: Annotated[str, typer.Option("--lang", help="Language of the terminal and the report: en, zh.")] = "en",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Train a tiny policy on fairness and faithfulness: no data, no GPU, no network.

    A demo that was interrupted goes on where it stopped; one that is complete shows its summary.
    """
    from levelhead.diagnosis.findings import language_named
    from levelhead.recipe import parse

    language = language_named(lang)
    name = "dual-tiny.yaml"
    packaged = resources.files("levelhead") / "recipes" / name
    if not packaged.is_file():
        raise InputError(f"{name}: the recipe that ships with the package is missing; install it again")
    recipe = parse(packaged.read_text(encoding="utf-8"), overrides or [], source=name)
    resume, changes = (out / "recipe.yaml").is_file(), keys_of(accept)
    accepted: dict[str, Any] = {"accept_changes": changes} if resume and changes else {}
    run(recipe, out, resume, as_json, language=language, **accepted)
