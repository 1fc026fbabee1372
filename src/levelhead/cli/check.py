"""``levelhead check``: prove before the first step that tokens, masks, signs and rewards line up.

With ``--plan``: what memory a run will take, before it is started and without its weights.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levelhead.errors import InputError
from levelhead.terminal import say, say_json, width, wrapped

if TYPE_CHECKING:
    from levelhead.diagnosis.findings import Language
    from levelhead.preflight.memory_plan import MemoryPlan
    from levelhead.preflight.plan_change import Change


def check(
    recipe: Annotated[
        Path | None, typer.Argument(help="A YAML recipe, or the name of one that ships.", show_default=False)
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key, as grpo.steps=20 or tasks.0.weight=2.")
    ] = None,
    lang: Annotated[str, typer.Option("--lang", help="Language of the texts: en, zh.")] = "en",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show checks that pass as well.")] = False,
    evidence: Annotated[bool, typer.Option("--evidence", help="Show the evidence of what is shown.")] = False,
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="CHECK",
            help="Say what a check proves, how, and what it cannot; 'list' names all checks.",
            show_default=False,
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what memory the run will take, from the model's config alone.")
    ] = False,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="SIZE", help="Plan for a GPU of this memory, as 80GB.", show_default=False),
    ] = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option("--prompt-tokens", min=1, help="Plan for prompts of so many tokens.", show_default=False),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, help="Plan for one of so many processes.", show_default=False),
    ] = None,
) -> None:
    """Check a recipe on its real model, tokenizer and tasks, without training: exit 1 where a check fails."""
    from levelhead.diagnosis.findings import language_named

    language = language_named(lang)
    if explain is not None:
        _explain(explain, language, as_json=as_json)
        return
    if recipe is None:
        raise InputError("levelhead check needs a recipe: levelhead check RECIPE; or --explain CHECK")
    if plan:
        show_plan(recipe, overrides or [], gpu, prompt_tokens, processes, as_json=as_json)
        return
    if gpu is not None or prompt_tokens is not None or processes is not None:
        raise InputError("--gpu, --prompt-tokens and --processes are for --plan: levelhead check RECIPE --plan")
    from levelhead.api import check as run_checks
    from levelhead.preflight.progress import Printer
    from levelhead.recipe import load

    printer = None if as_json else Printer(everything=everything, evidence=evidence, language=language)
    report = run_checks(load(recipe, overrides or []), printer=printer)
    if as_json:
        say_json({"status": report.status, "seconds": round(report.seconds, 1), "checks": report.to_json()})
    if report.failures:
        raise typer.Exit(1)


def _explain(name: str, language: Language, *, as_json: bool) -> None:
    """Print what a check proves, how, and what it cannot; the names of all for ``list``."""
    from levelhead.preflight.explain import CATALOGUE, explain

    entries = list(CATALOGUE.values()) if name == "list" else [explain(name)]
    about = {"proves": "证明\uff1a", "how": "方法\uff1a", "cannot": "局限\uff1a"}
    if as_json:
        rows = [{"name": e.name} | {key: getattr(e, key).text({}, language) for key in about} for e in entries]
        say_json(rows)
        return
    if name == "list":
        for entry in entries:
            say(entry.name)
        return
    (entry,) = entries
    say(entry.name)
    for label, chinese in about.items():
        head = chinese if language == "zh" else f"{label + ':':8}"
        text = f"{head}{getattr(entry, label).text({}, language)}"
        for line in wrapped(text, min(width(), 100), 2):
            say(line)


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


def _table(plan: MemoryPlan) -> None:
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


def _title(plan: MemoryPlan) -> str:
    compute = str(plan.target.compute).removeprefix("torch.")
    each = f" in each of {plan.processes} processes" if plan.processes > 1 else ""
    return (
        f"Memory{each} for {plan.parameters:,} parameters ({plan.trained:,} trained), {compute}, "
        f"backend {plan.backend}, prompts of {plan.prompts.tokens:,} tokens ({plan.prompts.source})"
    )


def _status(plan: MemoryPlan) -> str:
    if plan.target.room is None:
        return f"{_shown(plan.total)} in phase {plan.peak}; nobody knows what {plan.target.name} has"
    word = {"tight": "fits, but tightly"}.get(plan.status, plan.status)
    return f"{word}: {_shown(plan.total)} of {_shown(plan.target.room)} ({plan.target.name}), in phase {plan.peak}"


def verdict(plan: MemoryPlan, change: Change | None) -> list[str]:
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
