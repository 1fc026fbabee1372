"""``levelhead eval``: score a checkpoint on held-out items, greedy and sampled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    recipe: Annotated[Path, typer.Argument(help="A YAML recipe.", show_default=False)],
    checkpoint: Annotated[Path, typer.Option(help="Folder of a checkpoint.", show_default=False)],
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Override a key.")] = None,
    items: Annotated[int | None, typer.Option(help="Held-out items a task.  [eval.final_items]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Score a policy on held-out items, greedy and sampled, with each task's own metrics."""
    from rich.console import Console
    from rich.table import Table

    from levelhead.api import evaluate as score
    from levelhead.recipe import load

    found = score(load(recipe, overrides or []), checkpoint, items=items)
    if as_json:
        typer.echo(json.dumps({way: {n: r.to_json() for n, r in tasks.items()} for way, tasks in found.items()}))
        return
    table = Table(title=str(checkpoint), title_justify="left")
    for column in ("task", "draws", "score", "validity", "length", "items"):
        table.add_column(column, justify="left" if column in ("task", "draws") else "right")
    for way, tasks in found.items():
        for name, r in tasks.items():
            table.add_row(name, way, f"{r.score:+.3f} ± {r.se:.3f}", f"{r.validity:.1%}", f"{r.length:.1f}", str(r.n))
    console = Console()
    console.print(table)
    for name, r in found["greedy"].items():
        for metric, value in r.metrics.items():
            console.print(f"{name}  {metric}  {value:.4f}")
