"""``levelhead eval``: score a checkpoint on held-out items, greedy and sampled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from levelhead.tasks.constant import Estimate
    from levelhead.training.evaluate import TaskResult


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
    from levelhead.watch.verdict import short

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
    console.print(_strata_table(found))
    for name, r in found["greedy"].items():
        if r.constant is not None:
            console.print(f"{name}: the best constant answer is {short(r.constant.answer)}", markup=False)
    for name, r in found["greedy"].items():
        for metric, value in r.metrics.items():
            console.print(f"{name}  {metric}  {value:.4f}")


def _strata_table(found: Mapping[str, Mapping[str, TaskResult]]) -> Table:
    """Each task's balanced score, its strata and what a policy would get that reads nothing."""
    from rich.table import Table
    from rich.text import Text

    from levelhead.tasks.constant import Estimate

    table = Table(title="Beside the best constant answer", title_justify="left")
    for column in ("task", "draws", "items of", "score", "constant", "above it", "items"):
        table.add_column(column, justify="left" if column in ("task", "draws", "items of") else "right")
    for way, tasks in found.items():
        for name, r in tasks.items():
            theirs = Estimate.of(r.constant.scores) if r.constant else None
            over = r.over_constant
            rows = [("all", Estimate(r.score, r.se), theirs, over.all if over else None, r.n)]
            if len(r.strata) > 1:
                rows += [("strata alike", r.balanced, None, over.balanced if over else None, r.n)]
                rows += [(key, s.result, s.constant, s.over_constant, s.n) for key, s in r.strata.items()]
            for label, mine, constant, gap, n in rows:
                table.add_row(name, way, Text(label), *(_estimate(e) for e in (mine, constant, gap)), str(n))
    return table


def _estimate(estimate: Estimate | None) -> str:
    return "" if estimate is None else f"{estimate.score:+.3f} ± {estimate.se:.3f}"
