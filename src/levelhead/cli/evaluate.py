"""``levelhead eval``: score a checkpoint on held-out items, greedy and sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from levelhead.terminal import say_json


def evaluate(
    recipe: Annotated[Path, typer.Argument(help="A YAML recipe, or the name of one that ships.", show_default=False)],
    checkpoint: Annotated[
        Path, typer.Option(help="Folder of a checkpoint; with --front, of a run.", show_default=False)
    ],
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Override a key.")] = None,
    items: Annotated[int | None, typer.Option(help="Held-out items a task.  [eval.final_items]")] = None,
    front: Annotated[bool, typer.Option("--front", help="Score every checkpoint of the run's Pareto front.")] = False,
    lang: Annotated[str, typer.Option("--lang", help="Language of the tables: en, zh.")] = "en",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Score a policy on held-out items, greedy and sampled, with each task's own metrics."""
    from levelhead.api import evaluate as score
    from levelhead.cli.fronts import front_folders, score_front, show_front
    from levelhead.cli.summary import show_scores
    from levelhead.diagnosis.findings import language_named
    from levelhead.recipe import load
    from levelhead.terminal.console import SafeConsole

    language = language_named(lang)
    if front:
        page = score_front(load(recipe, overrides or []), front_folders(checkpoint), items)
        if as_json:
            say_json(page)
        else:
            show_front(SafeConsole(), page)
        return
    results = score(load(recipe, overrides or []), checkpoint, items=items)
    scored = {way: {name: result.to_json() for name, result in tasks.items()} for way, tasks in results.items()}
    if as_json:
        say_json(scored)
        return
    show_scores(SafeConsole(), scored, language)
