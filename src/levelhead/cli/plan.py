"""``levelhead check --plan``: what memory a run will take, before it is started and without its weights."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from levelhead.terminal import say, say_json

if TYPE_CHECKING:
    from levelhead.preflight.plan import Plan
    from levelhead.preflight.plan_change import Change

_STYLES = {"fits": "green", "tight": "yellow", "does not fit": "bold red", "unknown": "yellow"}
_GIB, _MIB = 2**30, 2**20


def show_plan(
    recipe: Path,
    overrides: Sequence[str],
    gpu: str | None,
    prompt_tokens: int | None,
    processes: int | None,
    *,
    as_json: bool,
) -> None:
    """Print the plan of a recipe, as a table or as one JSON document; exit 1 where it does not fit.

    Args:
        recipe: Its file.
        overrides: Dotted keys that win.
        gpu: Memory of the GPU; this machine's device unless given.
        prompt_tokens: Length of the longest prompt; what the tasks say unless given.
        processes: That will train; as many as a launcher has started unless given.
        as_json: Whether to print JSON.
    """
    from levelhead.recipe import load
    from levelhead.startup import uncollected

    with uncollected():
        resolved = load(recipe, list(overrides))  # before torch: sections look their keys' words up among all modules
        from levelhead.preflight.plan_change import make_plan

        count = processes or int(os.environ.get("WORLD_SIZE", "1"))
        plan, change = make_plan(resolved, gpu, prompt_tokens, count, compare=True)
    if as_json:
        say_json(plan.to_json() | {"change": change.to_json() if change else None})
    else:
        _table(plan)
        for line in verdict(plan, change):
            say(line)
        if resolved.distributed.shard == "full" and count == 1:
            say("distributed.shard: full divides nothing over one process; --processes N plans one of N")
    if plan.fits is False:
        raise typer.Exit(1)


def _table(plan: Plan) -> None:
    """Print a line a part, with a column a phase, and the sums."""
    from rich.table import Table
    from rich.text import Text

    from levelhead.terminal.console import SafeConsole

    table = Table(title=_title(plan), title_justify="left", box=None, padding=(0, 1))
    table.add_column("", no_wrap=True)
    for phase in plan.phases:
        table.add_column(phase, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for part in plan.parts:
        cells = [_shown(part.size) if phase in part.phases else "" for phase in plan.phases]
        table.add_row(part.name, *cells, Text(part.note, style="dim"))
    table.add_row("together", *(_shown(size) for size in plan.phases.values()), style="bold")
    console = SafeConsole()
    console.print(table)
    console.print(Text(_status(plan), style=_STYLES[plan.status]))


def _title(plan: Plan) -> str:
    compute = str(plan.target.compute).removeprefix("torch.")
    each = f" in each of {plan.processes} processes" if plan.processes > 1 else ""
    return (
        f"Memory{each} for {plan.parameters:,} parameters ({plan.trained:,} trained), {compute}, "
        f"backend {plan.backend}, prompts of {plan.prompts.tokens:,} tokens ({plan.prompts.source})"
    )


def _status(plan: Plan) -> str:
    if plan.target.room is None:
        return f"{_shown(plan.total)} in phase {plan.peak}; nobody knows what {plan.target.name} has"
    word = {"tight": "fits, but tightly"}.get(plan.status, plan.status)
    return f"{word}: {_shown(plan.total)} of {_shown(plan.target.room)} ({plan.target.name}), in phase {plan.peak}"


def verdict(plan: Plan, change: Change | None) -> list[str]:
    """Return the lines below the table: both sides of checkpointing, and the first setting to change."""
    lines = []
    if plan.activations:
        sizes = [f"{_shown(size)} {name}" for name, size in plan.activations.items()]
        lines.append(f"activations and logits of a micro-batch: {', '.join(sizes)}")
    if change is not None:
        settings = ", ".join(f"{key}: {_value(value)}" for key, value in change.settings.items())
        label = "change first" if len(change.settings) == 1 else "change, in this order"
        end = "fits" if change.fits else "still does not fit: a larger GPU, or a smaller model"
        lines.append(f"{label}: {settings} ({_shown(change.total)} then, which {end})")
    elif plan.fits is False:
        lines.append("no setting of the recipe makes it fit: a larger GPU, or a smaller model")
    return lines


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value(entry)}" for key, entry in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(size: int) -> str:
    """A size with its unit: ``12.3 MiB``, ``1.25 GiB``."""
    return f"{size / _GIB:,.2f} GiB" if size >= _GIB else f"{size / _MIB:,.1f} MiB"
